"""The VarCon loss as a module: what it learns (epsilon) and remembers (the bank) between calls."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from varcon.core import InputError
from varcon.distributed import sum_over_processes, union_over_processes, world_size
from varcon.kernels import loss_kernel_serves
from varcon.limits import above_zero, at_least, below_one, checked
from varcon.loss_inputs import check_shapes, check_values, lengths
from varcon.losses.precision import products
from varcon.losses.varcon import (
    Terms,
    class_sums,
    leave_one_out,
    number_the_present,
    varcon_loss,
    varcon_loss_by_scores,
)

References = Literal["batch", "leave-one-out", "ema", "learned"]
Classes = Literal["present", "all"]
TEMPERATURE = 0.1  # tau1, the paper's
EPSILON = 0.02  # half the range of tau2, where it begins
EPSILON_RANGE = (0.0, 0.08)  # in which a learned epsilon stays
REFERENCE_MOMENTUM = 0.9  # how much of a running mean a step keeps
SHORTEST = 1e-12  # below which torch.nn.functional.normalize divides by this instead


class VarConLoss(nn.Module):
    """Variational supervised contrastive loss, KL(q || p) - log p_r, with a learnable epsilon.

    ``loss_fn(embeddings, labels)`` takes embeddings [N, d] of any float type and integer labels [N].
    Two views of a batch enter as 2N embeddings with the labels repeated. With several processes each
    passes its own part of the batch; the average of their gradients is that of the whole batch.

    num_classes: labels lie in [0, num_classes). None finds the classes of each batch, which costs a
        device synchronisation and, with several processes, a second exchange.
    temperature: tau1, the temperature of p.
    epsilon: half the range of the adaptive temperature tau2 around tau1; learned within
        `epsilon_range`, and always below tau1, unless `learn_epsilon` is false.
    references: a class's reference is its mean in the batch ("batch"), that mean without the sample
        itself ("leave-one-out"), a running mean over steps ("ema", which moves in training mode), or a
        parameter ("learned"), which is no constant to the gradient.
    classes: p and q run over the classes of the batch ("present") or over every class that has a
        reference ("all", for "ema" and "learned").
    normalize: scale the embeddings to unit length first; turn it off if they already are.
    reference_momentum: how much of the running mean a step keeps; a new class starts at its batch mean.
    dimensions: of the embeddings; only learned references ask for them.

    On the CPU, NaN, zero vectors and labels out of range raise an error that names them. On a GPU, where
    looking would stall the device, they make the loss NaN.

    On a GPU with Triton, from Ampere on, the loss and its gradient are three kernels; elsewhere, and for
    learned references, float64 or more than 512 dimensions, plain torch computes the same. On a GPU the
    class sums add up in any order, unless torch.use_deterministic_algorithms asks for one.
    """

    bank: Tensor  # [num_classes, d] running class means; d is 0 until the first batch tells it
    known: Tensor  # [num_classes] whether the class has been seen

    def __init__(
        self,
        num_classes: int | None = None,
        temperature: float = TEMPERATURE,
        epsilon: float = EPSILON,
        learn_epsilon: bool = True,
        epsilon_range: tuple[float, float] = EPSILON_RANGE,
        references: References = "batch",
        classes: Classes = "present",
        normalize: bool = True,
        reference_momentum: float = REFERENCE_MOMENTUM,
        dimensions: int | None = None,
    ) -> None:
        super().__init__()
        self.num_classes = checked(num_classes, int | None, "VarConLoss.num_classes")
        self.temperature = checked(temperature, float, "VarConLoss.temperature")
        epsilon = checked(epsilon, float, "VarConLoss.epsilon")
        self.references: References = checked(references, References, "VarConLoss.references")
        self.classes: Classes = checked(classes, Classes, "VarConLoss.classes")
        self.normalize = checked(normalize, bool, "VarConLoss.normalize")
        self.reference_momentum = checked(reference_momentum, float, "VarConLoss.reference_momentum")
        self.dimensions = checked(dimensions, int | None, "VarConLoss.dimensions")
        learn_epsilon = checked(learn_epsilon, bool, "VarConLoss.learn_epsilon")
        low, high = checked(epsilon_range, tuple[float, float], "VarConLoss.epsilon_range")
        above_zero(self, "temperature", of="VarConLoss")
        below_one(self, "reference_momentum", of="VarConLoss")
        check_together(self.temperature, epsilon, (low, high), references, classes, of="VarConLoss")
        if references == "ema" and num_classes is None:
            raise InputError("references='ema' keeps a bank of classes; say how many with num_classes")
        if references == "learned" and (num_classes is None or dimensions is None):
            raise InputError(
                "references='learned' has a vector for each class: give num_classes and dimensions"
            )
        for name in ("num_classes", "dimensions"):
            if getattr(self, name) is not None:
                at_least(1, self, name, of="VarConLoss")
        self.epsilon_range = (low, max(epsilon, min(high, 0.99 * self.temperature)))
        self.epsilon = nn.Parameter(torch.tensor(float(epsilon)), requires_grad=learn_epsilon)
        if references == "ema" and num_classes is not None:
            self.register_buffer("bank", torch.zeros(num_classes, 0))
            self.register_buffer("known", torch.zeros(num_classes, dtype=torch.bool))
        if references == "learned" and num_classes is not None and dimensions is not None:
            self.learned = nn.Parameter(F.normalize(torch.randn(num_classes, dimensions), dim=1))

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return self.with_terms(embeddings, labels)[0]

    def explain(self, embeddings: Tensor, labels: Tensor) -> Terms:
        """The terms of each sample; changes neither gradients nor the bank.

        With several processes every one of them must call it.
        """
        self.clamp_epsilon()
        with torch.no_grad():
            return self._loss(embeddings, labels, learn=False)[1]

    def with_terms(
        self, embeddings: Tensor, labels: Tensor, temperature: Tensor | None = None
    ) -> tuple[Tensor, Terms]:
        """The loss, and the terms of each sample.

        `temperature` replaces tau1 for this call, as where it changes during training: a float32 tensor of
        one number on the device, above epsilon, which a CUDA graph reads anew in every replay. No gradient
        reaches it.
        """
        if temperature is not None and not (isinstance(temperature, Tensor) and temperature.ndim == 0):
            raise InputError(
                f"temperature is {temperature!r}; give a tensor of one number: torch.tensor(0.1)"
            )
        self.clamp_epsilon()
        return self._loss(embeddings, labels, self.training, temperature)

    @torch.no_grad()
    def clamp_epsilon(self) -> None:
        """Returns epsilon to its range; every call of the loss begins with it."""
        if self.epsilon.requires_grad:
            self.epsilon.clamp_(*self.epsilon_range)

    def _loss(
        self, embeddings: Tensor, labels: Tensor, learn: bool, temperature: Tensor | None = None
    ) -> tuple[Tensor, Terms]:
        check_shapes(embeddings, labels)
        if self.epsilon.device != embeddings.device:
            raise InputError(
                f"the embeddings are on {embeddings.device} and the loss is on {self.epsilon.device}; move "
                "it there: loss_fn.to(embeddings.device)"
            )
        if labels.device != embeddings.device:
            raise InputError(
                f"the embeddings are on {embeddings.device} and the labels on {labels.device}; move them "
                "there: labels.to(embeddings.device)"
            )
        if temperature is not None and temperature.device != embeddings.device:
            raise InputError(
                f"the embeddings are on {embeddings.device} and the temperature on {temperature.device}; "
                "move it there: temperature.to(embeddings.device)"
            )
        labels = labels.long().contiguous()  # in fewer bits the number of classes may have no room
        looked_at = embeddings.device.type == "cpu" and not torch.compiler.is_compiling()
        if looked_at:
            check_values(embeddings, labels, self.num_classes, self._shortest)
            if temperature is not None and not self.epsilon < temperature < math.inf:
                raise InputError(
                    f"temperature is {temperature.item():g} and epsilon {self.epsilon.item():g}; it must be "
                    "finite and above epsilon, or tau2 reaches 0"
                )
        places, num_classes = self._places(labels)
        if self.references == "ema":
            self._make_room(embeddings)
        elif self.references == "learned" and self.learned.shape[1] != embeddings.shape[1]:
            raise InputError(
                f"the learned references have {self.learned.shape[1]} dimensions and the embeddings "
                f"{embeddings.shape[1]}"
            )
        if loss_kernel_serves(embeddings) and self.references != "learned":
            return self._fused(embeddings, places, num_classes, learn, temperature)
        with torch.autocast(embeddings.device.type, enabled=False):
            losses, terms, sums, counts = self._plain(embeddings, places, num_classes, temperature)
        if not looked_at:
            outside = (places < 0) | (places >= num_classes)
            norms = lengths(embeddings)
            losses = losses.masked_fill(outside | (norms <= self._shortest) | ~norms.isfinite(), torch.nan)
        # Exact also where the processes hold different numbers of samples: averaging the
        # processes' gradients divides by the world size, so each shares out the whole batch.
        loss = losses.sum() * (world_size() / counts.sum())
        if self.references == "ema" and learn:
            self._update_bank(sums, counts, loss)
        return loss, terms

    @property
    def _shortest(self) -> float:
        """An embedding must be longer: torch gives what is shorter no unit length, and 0 has no direction."""
        return SHORTEST if self.normalize else 0.0

    def _places(self, labels: Tensor) -> tuple[Tensor, int]:
        """Each sample's row among the class references, and how many those have room for.

        A bad label's row is none of them.
        """
        if self.num_classes is None:
            found = union_over_processes(labels)
            return torch.searchsorted(found, labels).masked_fill(labels < 0, -1), len(found)
        # Far more classes than samples: the work should grow with those that can be present.
        # References that outlive a batch have every class's row, and other processes hold other classes.
        outlive_it = self.references in ("ema", "learned")
        if self.num_classes > 2 * len(labels) and not outlive_it and world_size() == 1:
            return number_the_present(labels, self.num_classes), len(labels)
        return labels, self.num_classes

    def _fused(
        self, embeddings: Tensor, places: Tensor, num_classes: int, learn: bool, temperature: Tensor | None
    ) -> tuple[Tensor, Terms]:
        from varcon.kernels import fused_loss

        ema = self.references == "ema"
        class_sums = sum_over_processes(
            fused_loss.sum_classes(embeddings.detach(), places, num_classes, self.normalize)
        )
        loss, terms = fused_loss.fused_varcon_loss(
            embeddings,
            self.epsilon,
            places,
            class_sums,
            self.temperature,
            self.bank if ema else None,
            self.known if ema else None,
            temperature_now=temperature,
            all_classes=self.classes == "all",
            leave_one_out=self.references == "leave-one-out",
            normalize=self.normalize,
            processes=world_size(),
        )
        if ema and learn:
            self._update_bank(*fused_loss.split_sums(class_sums, embeddings.shape[1]), loss)
        return loss, Terms(*terms.unbind())

    def _plain(
        self, embeddings: Tensor, places: Tensor, num_classes: int, now: Tensor | None
    ) -> tuple[Tensor, Terms, Tensor, Tensor]:
        """The losses of the samples, their terms, and each class's sum and count over all processes."""
        z = embeddings if embeddings.dtype == torch.float64 else embeddings.float()
        z = F.normalize(z, dim=1) if self.normalize else z
        temperature = self.temperature if now is None else now.detach().to(z.dtype)
        inside = places.clamp(0, num_classes - 1)
        constant = z.detach()
        # A bad label's sample goes into a row of its own: it must not move a class's reference.
        rows = torch.where(inside == places, places, num_classes)
        # Learned references need no sums: of embeddings without dimensions, none are made or exchanged.
        summed = constant[:, :0] if self.references == "learned" else constant
        sums, counts = (part[:num_classes] for part in class_sums(summed, rows, num_classes + 1))
        together = sum_over_processes(torch.cat([sums, counts[:, None]], dim=1))
        sums, counts = together[:, :-1], together[:, -1]
        references, present = F.normalize(sums, dim=1), counts > 0
        if self.references == "learned":
            scores = products(z, F.normalize(self.learned.to(z.dtype), dim=1)) / temperature
            present = present | (self.classes == "all")
            losses, terms = varcon_loss_by_scores(
                scores, inside, present, self.epsilon.to(z.dtype), temperature
            )
            return losses, terms, sums, counts
        own = None
        if self.references == "leave-one-out":
            own = leave_one_out(constant, inside, sums, counts, references)
        elif self.references == "ema":
            bank = F.normalize(self.bank.to(z.dtype), dim=1)
            references = torch.where(self.known[:, None], bank, references)
            present = (present | self.known) if self.classes == "all" else present
        losses, terms = varcon_loss(
            z, inside, references, present, self.epsilon.to(z.dtype), temperature, own
        )
        return losses, terms, sums, counts

    def _make_room(self, embeddings: Tensor) -> None:
        dimensions = embeddings.shape[1]
        if self.bank.shape[1] == 0:
            kind = torch.promote_types(embeddings.dtype, torch.float32)
            with torch.inference_mode(False):  # or training could not move it after a validation
                self.bank = embeddings.new_zeros(len(self.bank), dimensions, dtype=kind)
            self.known.zero_()  # a state that was kept before the first batch shares what that one made of it
        if self.bank.shape[1] != dimensions:
            raise InputError(
                f"the bank holds vectors of {self.bank.shape[1]} dimensions and the embeddings have "
                f"{dimensions}: use one VarConLoss for each embedding space"
            )

    @torch.no_grad()
    def _update_bank(self, sums: Tensor, counts: Tensor, loss: Tensor) -> None:
        # Training survives a batch that has overflowed, or holds a bad sample, in any of the processes: no
        # class moves by it.
        present = (counts > 0) & sum_over_processes(loss.detach()).isfinite()
        means = sums / counts.clamp_min(1)[:, None]
        kept = self.reference_momentum * self.known.to(means.dtype)[:, None]
        moved = kept * self.bank.to(means.dtype) + (1 - kept) * means
        self.bank.copy_(torch.where(present[:, None], moved, self.bank.to(means.dtype)))
        self.known.logical_or_(present)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        stored = state_dict.get(f"{prefix}bank")
        if stored is not None and self.references == "ema" and len(stored) == len(self.bank):
            kind = torch.promote_types(stored.dtype, torch.float32)  # in half precision it would stand still
            with torch.inference_mode(False):  # as in _make_room
                self.bank = self.bank.new_zeros(stored.shape, dtype=kind)
        super()._load_from_state_dict(state_dict, prefix, *args)
        with torch.no_grad():  # saved after a step, it may lie outside until the next call
            self.epsilon.clamp_(*self.epsilon_range)

    def extra_repr(self) -> str:
        return (
            f"num_classes={self.num_classes}, temperature={self.temperature}, "
            f"references={self.references!r}, classes={self.classes!r}"
        )


def check_together(
    temperature: float,
    epsilon: float,
    epsilon_range: tuple[float, float],
    references: References,
    classes: Classes,
    of: str,
) -> None:
    """Settings that exclude each other; `of` says whose they are."""
    if classes == "all" and references not in ("ema", "learned"):
        raise InputError(
            f"{of}.classes is 'all'; {of}.references must then be 'ema' or 'learned', for {references!r} "
            f"ones exist for the classes of the batch alone; or set {of}.classes to 'present'"
        )
    low, high = epsilon_range
    if not 0 <= low <= epsilon <= high:
        raise InputError(
            f"{of}.epsilon is {epsilon}; it must lie in {of}.epsilon_range {epsilon_range}, at least 0"
        )
    if epsilon >= temperature:
        raise InputError(
            f"{of}.epsilon is {epsilon}; it must be below {of}.temperature {temperature}, or tau2 reaches 0: "
            "lower epsilon or raise the temperature"
        )
