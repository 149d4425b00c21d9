"""The Triton kernels of the VarCon loss: class sums, references, then loss and gradient in one pass.

The softmax's two products run on the tensor cores in float16, whose 11 bits serve unit vectors better than
the 8 of bfloat16. For float32 embeddings each factor is the sum of two float16 numbers, high + low, of
which the three products that matter are taken: some 22 bits survive. All sums are float32.

A launch costs the host some time for each argument, so tensors that belong together are one: `class_sums`
holds sums [C, d] and then counts [C], `references` high [padded C, WIDTH] and then low, and `scratch` what
_divide_scratch says.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
SMALLEST_NORM = tl.constexpr(1e-12)  # as in torch.nn.functional.normalize
LIFT = tl.constexpr(10.0)  # softmax weights reach 2**10, which keeps small ones above float16's underflow
LOWEST = tl.constexpr(-1e30)  # stands for -inf where a difference of two -inf would be NaN
REFERENCE_ROWS = tl.constexpr(16)  # classes that make_references takes at a time
KEEP, LAST_USE = tl.constexpr(""), tl.constexpr("evict_first")  # hints to the cache


@triton.jit
def _length(vectors):
    return tl.maximum(tl.sqrt(tl.sum(vectors * vectors, axis=1)), SMALLEST_NORM)


@triton.jit
def _unit(vectors):
    return vectors * (1 / _length(vectors))[:, None]


@triton.jit
def _load_rows(matrix, rows, columns, inside, width, EVICTION: tl.constexpr = KEEP):
    """Float32 rows of a contiguous matrix; 0 outside it."""
    mask = inside[:, None] & (columns < width)[None, :]
    places = rows.to(tl.int64)[:, None] * width + columns[None, :]
    return tl.load(matrix + places, mask=mask, other=0.0, eviction_policy=EVICTION).to(tl.float32)


@triton.jit
def _counts(class_sums, classes, width):
    return class_sums + tl.cast(classes, tl.int64) * width


@triton.jit
def _load_classes(labels, rows, inside, classes):
    """Each sample's class, forced into range, and whether it had to be."""
    label = tl.load(labels + rows, mask=inside, other=0).to(tl.int64)
    place = tl.minimum(tl.maximum(label, 0), classes - 1)
    return place, place != label


@triton.jit
def add_to_classes(
    embeddings, labels, class_sums, samples, classes, width,
    NORMALIZE: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Adds a block of samples to sums and counts, in whatever order the blocks come."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, WIDTH)
    inside = rows < samples
    place, _ = _load_classes(labels, rows, inside, classes)
    z = _load_rows(embeddings, rows, columns, inside, width)
    if NORMALIZE:
        z = _unit(z)
    mask = inside[:, None] & (columns < width)[None, :]
    tl.atomic_add(class_sums + place[:, None] * width + columns[None, :], z, mask=mask, sem="relaxed")
    counts = _counts(class_sums, classes, width)
    tl.atomic_add(counts + place, tl.full([ROWS], 1.0, tl.float32), mask=inside, sem="relaxed")


@triton.jit
def sum_sorted_classes(
    embeddings, order, starts, class_sums, classes, width,
    NORMALIZE: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One program a class, over the samples order[starts[k]:starts[k + 1]]: the same bits in every run."""
    k = tl.program_id(0).to(tl.int64)
    first = tl.load(starts + k).to(tl.int32)
    last = tl.load(starts + k + 1).to(tl.int32)
    columns = tl.arange(0, WIDTH)
    total = tl.zeros([WIDTH], tl.float32)
    for start in range(first, last, ROWS):
        ranks = start + tl.arange(0, ROWS)
        inside = ranks < last
        rows = tl.load(order + ranks, mask=inside, other=0)
        z = _load_rows(embeddings, rows, columns, inside, width)
        if NORMALIZE:
            z = _unit(z)
        total += tl.sum(z, axis=0)
    tl.store(class_sums + k * width + columns, total, mask=columns < width)
    tl.store(_counts(class_sums, classes, width) + k, (last - first).to(tl.float32))


@triton.jit
def _load_directions(class_sums, bank, known, rows, columns, inside, width):
    """The vector whose direction is a class's reference: its sum, or its row of the bank if that knows it."""
    directions = _load_rows(class_sums, rows, columns, inside, width)
    if bank is not None:
        remembered = tl.load(known + rows, mask=inside, other=0) != 0
        kept = _load_rows(bank, rows, columns, inside, width)
        directions = tl.where(remembered[:, None], kept, directions)
    return directions


@triton.jit
def _divide_scratch(scratch, padded_classes, WIDTH: tl.constexpr, PARTS: tl.constexpr):
    """A bias for each class; parts of the references' sum, of their number, of the samples' number; how
    many programs have finished, and what each has left."""
    total_parts = scratch + padded_classes  # [PARTS, WIDTH]
    present_parts = total_parts + PARTS * WIDTH  # [PARTS]
    sample_parts = present_parts + PARTS  # [PARTS]
    finished = sample_parts + PARTS
    return total_parts, present_parts, sample_parts, finished, finished + 1


@triton.jit
def make_references(
    class_sums, bank, known, references, scratch, classes, padded_classes, width,
    ALL_CLASSES: tl.constexpr, SPLIT: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """References for the tensor cores; what is absent is 0 and has the bias -inf.

    The programs, of which there are at most PARTS, also start what the next kernel adds up in `scratch`.
    """
    counts = _counts(class_sums, classes, width)
    total_parts, present_parts, sample_parts, finished, _ = _divide_scratch(
        scratch, padded_classes, WIDTH, PARTS
    )
    columns = tl.arange(0, WIDTH)
    total = tl.zeros([WIDTH], tl.float32)
    present_classes = tl.zeros([REFERENCE_ROWS], tl.float32)
    counted = tl.zeros([REFERENCE_ROWS], tl.float32)
    part = tl.program_id(0)
    for block in range(part, padded_classes // REFERENCE_ROWS, tl.num_programs(0)):
        rows = block * REFERENCE_ROWS + tl.arange(0, REFERENCE_ROWS)
        inside = rows < classes
        count = tl.load(counts + rows, mask=inside, other=0.0)
        present = count > 0
        if ALL_CLASSES:
            present = present | (tl.load(known + rows, mask=inside, other=0) != 0)
        vectors = _unit(_load_directions(class_sums, bank, known, rows, columns, inside, width))
        vectors = tl.where(present[:, None], vectors, 0.0)
        places = rows.to(tl.int64)[:, None] * WIDTH + columns[None, :]
        high = vectors.to(tl.float16)
        tl.store(references + places, high)
        if SPLIT:
            low = references + tl.cast(padded_classes, tl.int64) * WIDTH
            tl.store(low + places, (vectors - high.to(tl.float32)).to(tl.float16))
        tl.store(scratch + rows, tl.where(present, 0.0, float("-inf")))
        total += tl.sum(vectors, axis=0)
        present_classes += present.to(tl.float32)
        counted += count
    tl.store(total_parts + part * WIDTH + columns, total)
    tl.store(present_parts + part, tl.sum(present_classes, axis=0))
    tl.store(sample_parts + part, tl.sum(counted, axis=0))
    if part == 0:
        tl.store(finished, 0.0)


@triton.jit
def _attend(
    direction, factor, place, references, bias, padded_classes,
    SPLIT: tl.constexpr, ROWS: tl.constexpr, CLASSES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Log-sum-exp over the present classes but a sample's own, their weighted sum [ROWS, WIDTH], and the
    factor that makes it the softmax mean.

    The scores are direction . w times `factor`, as powers of 2; the softmax is taken online, block by block.
    """
    low = references + tl.cast(padded_classes, tl.int64) * WIDTH
    z_high = direction.to(tl.float16)
    if SPLIT:
        z_low = (direction - z_high.to(tl.float32)).to(tl.float16)
    largest = tl.full([ROWS], LOWEST, tl.float32)
    weight_sum = tl.zeros([ROWS], tl.float32)
    weighted = tl.zeros([ROWS, WIDTH], tl.float32)
    own_place = place.to(tl.int32)
    class_numbers = tl.arange(0, CLASSES)
    offsets = class_numbers[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    for first in range(0, padded_classes, CLASSES):
        start = tl.cast(first, tl.int64) * WIDTH
        w_high = tl.load(references + start + offsets)
        scores = tl.dot(z_high, tl.trans(w_high))
        if SPLIT:
            w_low = tl.load(low + start + offsets)
            scores = tl.dot(z_low, tl.trans(w_high), scores)
            scores = tl.dot(z_high, tl.trans(w_low), scores)
        scores = scores * factor[:, None] + tl.load(bias + first + class_numbers)[None, :]
        scores = tl.where((first + class_numbers)[None, :] == own_place[:, None], float("-inf"), scores)
        higher = tl.maximum(largest, tl.max(scores, axis=1))
        weights = tl.exp2(scores - (higher - LIFT)[:, None])
        shrink = tl.exp2(largest - higher)
        weight_sum = weight_sum * shrink + tl.sum(weights, axis=1)
        weighted = weighted * shrink[:, None]
        largest = higher
        weights_high = weights.to(tl.float16)
        weighted = tl.dot(weights_high, w_high, weighted)
        if SPLIT:
            weights_low = (weights - weights_high.to(tl.float32)).to(tl.float16)
            weighted = tl.dot(weights_low, w_high, weighted)
            weighted = tl.dot(weights_high, w_low, weighted)
    # Without any other class the weights sum to 0: the mean is 0 and the log-sum-exp -inf.
    log_sum = (largest - LIFT + tl.log2(weight_sum)) * LN_2
    return log_sum, weighted, 1 / tl.where(weight_sum == 0, 1.0, weight_sum)


@triton.jit
def _log1p(x):
    """log(1 + x) for x >= 0, exact also where 1 + x rounds: the factor makes good what rounding took."""
    rounded = 1.0 + x
    return tl.where(rounded == 1.0, x, tl.log(rounded) * (x / tl.where(rounded == 1.0, 1.0, rounded - 1.0)))


@triton.jit
def _logaddexp(x, y):
    return tl.maximum(x, y) + _log1p(tl.exp(-tl.abs(x - y)))


@triton.jit
def _add_up(finished, block_sums, block_loss, loss, block_by_epsilon, by_epsilon):
    """The program that finishes last adds up what all have left, in their order: no launch, no chance."""
    programs = tl.num_programs(0)
    tl.store(block_sums + tl.program_id(0), block_loss)
    tl.store(block_sums + programs + tl.program_id(0), block_by_epsilon)
    tl.debug_barrier()  # every thread's stores come before the count
    if tl.atomic_add(finished, 1.0, sem="acq_rel") == programs - 1:
        loss_sum = tl.zeros([256], tl.float32)
        by_epsilon_sum = tl.zeros([256], tl.float32)
        for first in range(0, programs, 256):
            each = first + tl.arange(0, 256)
            # ".cg" reads where other processors have written, past this one's own cache.
            loss_sum += tl.load(block_sums + each, mask=each < programs, other=0.0, cache_modifier=".cg")
            by_epsilon_sum += tl.load(
                block_sums + programs + each, mask=each < programs, other=0.0, cache_modifier=".cg"
            )
        tl.store(loss, tl.sum(loss_sum, axis=0))
        tl.store(by_epsilon, tl.sum(by_epsilon_sum, axis=0))


@triton.jit
def loss_and_gradient(
    embeddings, epsilon, labels, class_sums, bank, known, references, scratch,
    loss, by_epsilon, terms, by_embeddings,
    samples, classes, padded_classes, width, temperature, temperature_now, processes,
    NORMALIZE: tl.constexpr, LEAVE_ONE_OUT: tl.constexpr, SPLIT: tl.constexpr,
    ROWS: tl.constexpr, CLASSES: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """A block of samples: its terms [5, N], its rows of by_embeddings, its part of loss and by_epsilon.

    The names and the algebra are those of varcon.losses.varcon, which explains them. Here every vector is
    a combination of x, the direction of the own class, the others' mean and the total of all references,
    because four matrices of registers are more than there are.
    """
    if temperature_now is not None:
        temperature = tl.load(temperature_now)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, WIDTH)
    inside = rows < samples
    place, outside = _load_classes(labels, rows, inside, classes)
    x = _load_rows(embeddings, rows, columns, inside, width)
    bad = outside | (tl.max(tl.abs(x), axis=1) == 0)
    size = _length(x)
    if NORMALIZE:
        bad = bad | (size <= SMALLEST_NORM)
    length = size if NORMALIZE else tl.full([ROWS], 1.0, tl.float32)
    factor = size / (temperature * length) * LOG2_E
    others_sum, others_weighted, mean_factor = _attend(
        x * (1 / size)[:, None], factor, place, references, scratch, padded_classes,
        SPLIT, ROWS, CLASSES, WIDTH,
    )  # fmt: skip

    total_parts, present_parts, sample_parts, finished, block_sums = _divide_scratch(
        scratch, padded_classes, WIDTH, PARTS
    )
    part = tl.arange(0, PARTS)
    made = part < padded_classes // REFERENCE_ROWS
    total = tl.load(total_parts + part[:, None] * WIDTH + columns[None, :], mask=made[:, None], other=0.0)
    total = tl.sum(total, axis=0)
    others = tl.sum(tl.load(present_parts + part, mask=made, other=0.0), axis=0) - 1.0  # C - 1
    share = processes / tl.sum(tl.load(sample_parts + part, mask=made, other=0.0), axis=0)

    # Loaded a second time: kept, it would take registers from the loop. The hint makes it a load of its own.
    x = _load_rows(embeddings, rows, columns, inside, width, LAST_USE)
    own = _load_directions(class_sums, bank, known, place, columns, inside, width)
    own_length = _length(own)
    inverse = 1 / length
    z_own = tl.sum(x * own, axis=1) * inverse
    z_mean = tl.sum(x * others_weighted, axis=1) * (inverse * mean_factor)
    z_total = tl.sum(x * total[None, :], axis=1) * inverse
    z_z = size * size * inverse * inverse
    taken = tl.zeros([ROWS], tl.float32)  # how much of z leaves the own class's sum
    left_length = own_length
    if LEAVE_ONE_OUT:
        alone = tl.load(_counts(class_sums, classes, width) + place, mask=inside, other=0.0) < 2
        taken = tl.where(alone, 0.0, 1.0)
        left_length = _length(own - (taken * inverse)[:, None] * x)

    own_score = (z_own - taken * z_z) / (left_length * temperature)
    gap = others_sum - own_score
    log_p = -(tl.maximum(gap, 0.0) + _log1p(tl.exp(-tl.abs(gap))))
    p = tl.exp(log_p)
    # With one class the total is the own reference up to rounding, and of the others nothing is left.
    z_others = tl.where(others > 0, z_total - z_own / own_length, 0.0)
    others_log_p = z_others / temperature - others * (own_score - log_p)

    half_range = tl.load(epsilon).to(tl.float32)
    tau2 = (temperature - half_range) + 2 * half_range * p
    a = 1 / tau2
    log_d = _logaddexp(tl.log(others), a)
    q = tl.exp(a - log_d)
    u = tl.exp(-log_d)
    kl = q * a - log_d - q * log_p - u * others_log_p
    by_a = q * u * (others * (a - log_p) + others_log_p)
    by_log_p = -q - 1 - 2 * half_range * p * a * a * by_a
    each_by_epsilon = -a * a * (2 * p - 1) * by_a

    # by_z = by_log_p (w_r - m) - u (total - others m), as weights of the four vectors
    away = 1 / (1 + tl.exp(-gap))  # 1 - p_r
    of_own = (by_log_p * away + u * others * (1 - away)) / left_length
    of_mean = (u * others - by_log_p) * away
    of_total = tl.where(others > 0, -u, 0.0)
    of_z = -of_own * taken
    of_own -= of_total / own_length
    if NORMALIZE:
        along = of_own * z_own + of_mean * z_mean + of_total * z_total + of_z * z_z
        of_z -= tl.where(length > SMALLEST_NORM, along, 0.0)
    scale = tl.where(bad, 0.0, share / temperature * inverse)
    by_x = (scale * of_own)[:, None] * own + (scale * of_mean * mean_factor)[:, None] * others_weighted
    by_x += (scale * of_total)[:, None] * total[None, :] + (scale * of_z * inverse)[:, None] * x

    tl.store(terms + rows, kl, mask=inside)
    tl.store(terms + samples + rows, -log_p, mask=inside)
    tl.store(terms + 2 * samples + rows, p, mask=inside)
    tl.store(terms + 3 * samples + rows, tau2, mask=inside)
    tl.store(terms + 4 * samples + rows, q, mask=inside)
    mask = inside[:, None] & (columns < width)[None, :]
    places = rows.to(tl.int64)[:, None] * width + columns[None, :]
    tl.store(by_embeddings + places, by_x, mask=mask)

    each_loss = tl.where(bad, float("nan"), kl - log_p)
    block_loss = tl.sum(tl.where(inside, each_loss, 0.0), axis=0) * share
    block_by_epsilon = tl.sum(tl.where(inside & (bad == 0), each_by_epsilon, 0.0), axis=0) * share
    _add_up(finished, block_sums, block_loss, loss, block_by_epsilon, by_epsilon)
