"""VarCon+PaCo: both losses on the same queries, predicting by PaCo's centres."""

from __future__ import annotations

from dataclasses import dataclass

from varcon.methods.paco import PaCo, PaCoSettings
from varcon.methods.varcon_gpaco import VarConGPaCo, VarConGPaCoSettings


@dataclass(frozen=True)
class VarConPaCoSettings(VarConGPaCoSettings, PaCoSettings):
    pass


class VarConPaCo(VarConGPaCo, PaCo):  # the combination's forward over PaCo's contrast
    Settings = VarConPaCoSettings
    settings: VarConPaCoSettings
