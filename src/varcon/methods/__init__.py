"""One file a method. A new one is added by its file and one line here."""

from varcon.core import Method
from varcon.methods.barlow import Barlow
from varcon.methods.byol import BYOL
from varcon.methods.cross_entropy import CrossEntropy
from varcon.methods.gpaco import GPaCo
from varcon.methods.moco import MoCo
from varcon.methods.paco import PaCo
from varcon.methods.simclr import SimCLR
from varcon.methods.supcon import SupCon
from varcon.methods.swav import SwAV
from varcon.methods.varcon import VarCon
from varcon.methods.varcon_gpaco import VarConGPaCo
from varcon.methods.varcon_paco import VarConPaCo
from varcon.methods.vicreg import VICReg
from varcon.methods.xclr import XCLR

METHODS: dict[str, type[Method]] = {
    "varcon": VarCon,
    "supcon": SupCon,
    "ce": CrossEntropy,
    "paco": PaCo,
    "gpaco": GPaCo,
    "varcon-paco": VarConPaCo,
    "varcon-gpaco": VarConGPaCo,
    "xclr": XCLR,
    "simclr": SimCLR,
    "moco": MoCo,
    "byol": BYOL,
    "swav": SwAV,
    "vicreg": VICReg,
    "barlow": Barlow,
}
