"""One file a method. A new one is added by its file and one line here."""

from varcon.core import Method
from varcon.methods.varcon import VarCon

METHODS: dict[str, type[Method]] = {
    "varcon": VarCon,
}
