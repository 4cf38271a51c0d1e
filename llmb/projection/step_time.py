"""Time of one training step of a job, part by part: an analytic model with nine constants.

Matrix products run at a share of the peak, plus a fixed time each. Elementwise operations between
products are limited by memory bandwidth. Collectives are rings at a share of the speed of link or
network, partly hidden behind products. The shares (``Constants``) are one set for all devices,
fitted on published rows (``benchmarks/projection``). A share also absorbs every effect outside the
model, and is no property of any device.

Sources: Korthikanti et al. 2022 (arXiv 2205.05198) for the traffic of tensor and sequence
parallelism; Narayanan et al. 2021 (arXiv 2104.04473) for the bubble (p - 1) / v; Dao 2023 (arXiv
2307.08691) for the factor 2.5 of attention's backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from llmb.errors import UsageError
from llmb.projection.hardware_files import Hardware
from llmb.projection.job import Job

#: Bytes of a value in products and messages (BF16), and of a gradient in an all-reduce (FP32).
VALUE, GRADIENT = 2, 4
#: Elementwise reads and writes per value of a layer's input: two norms, two residual sums, rotary
#: positions, casts. The feed-forward's activation function is counted apart, by its width.
_ELEMENTWISE = 10
#: Elementwise time of the backward pass over the forward pass.
_ELEMENTWISE_BACKWARD = 1.8
#: Passes over stored attention scores: scale, mask, softmax (two), dropout.
_SCORES = 5
#: Bytes read and written per logit: widened to float32 (6), its maximum (4), exponential and
#: sum (8), gradient (8), narrowed (6).
_LOGIT = 32
#: Bytes read and written per parameter by AdamW with float32 states.
_OPTIMIZER = 30
#: Latency in seconds of an all-reduce within a node, for descriptions without ``latency_s``.
_LATENCY_S = 10e-6
#: Share of a hidden transfer that still shows, times (1 - overlap).
_LEAK = 0.3
#: Share of overlapped all-reduces of tensor parallelism that still shows.
_TP_SHOWN = 0.5


@dataclass(frozen=True)
class Constants:
    """The fitted constants: one set for all devices."""

    #: Rate of a step's products over the sustained rate of large products. Example: 0.88.
    products: float
    #: Fixed seconds per product. Example: 6e-6.
    launch_s: float
    #: Rate of a step's attention over the rate of the device's best attention kernel.
    attention: float
    #: Share of the memory bandwidth.
    memory: float
    #: Shares of the speeds of the link within a node, and of the network.
    link: float
    network: float
    #: Share of compute time available to hide traffic. Example: 0.76.
    overlap: float
    #: Time of unfused over fused elementwise work. Example: 1.8.
    unfused: float
    #: Stored attention scores: fitted passes over counted passes (5).
    scores: float


@dataclass(frozen=True)
class ProjectedStep:
    """Seconds of one step on the slowest rank, by part."""

    products: float
    attention: float
    elementwise: float
    recompute: float
    tensor_parallel: float
    head: float
    bubble: float
    pipeline: float
    data_parallel: float
    optimizer: float

    @property
    def total(self) -> float:
        """Seconds of the whole step."""
        return sum(self.parts().values())

    def parts(self) -> dict[str, float]:
        """Return seconds by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True)
class _Passes:
    """Seconds of a forward and of a backward pass."""

    forward: float
    backward: float

    @property
    def both(self) -> float:
        return self.forward + self.backward


def step_time(job: Job, hardware: Hardware, constants: Constants) -> ProjectedStep:
    """Return the time of one step of ``job``, by part.

    Raises:
        UsageError: the job needs a link or a network without a speed in ``hardware``.
    """
    rates = _DeviceRates(hardware, constants)
    model, tokens = job.model, job.micro_batch * job.model.sequence
    products = _layer_products(job, tokens, rates)
    attention = _attention(job, rates)
    elementwise = _elementwise(job, tokens, rates)
    again = {
        "none": 0.0,
        "attention": attention.forward,
        "full": products.forward + attention.forward + elementwise.forward,
    }[job.recompute]
    sums = _tensor_parallel(job, tokens, rates)
    head = rates.product(tokens, model.hidden, model.vocabulary / job.tp)
    logits = _LOGIT * tokens * model.vocabulary / job.tp / rates.memory
    layers = model.layers / job.pp
    micro = products.both + attention.both + elementwise.both + again + sums
    forward = products.forward + attention.forward + elementwise.forward
    backward = products.backward + attention.backward + elementwise.backward + again
    times = layers * job.micro_batches
    shards = job.dp if job.zero else 1
    return ProjectedStep(
        products=times * products.both,
        attention=times * attention.both,
        elementwise=times * elementwise.both,
        recompute=times * again,
        tensor_parallel=times * sums,
        head=job.micro_batches * (head.both + logits),
        bubble=(job.pp - 1) / job.virtual_stages * layers * micro,
        pipeline=_between_stages(job, tokens, rates),
        data_parallel=_data_parallel(
            job,
            _Passes(layers * forward + head.forward, layers * backward + head.backward),
            rates,
        ),
        optimizer=_OPTIMIZER * job.rank_parameters / shards / rates.memory,
    )


class _DeviceRates:
    """The attained rates of a device, in FLOP/s and bytes/s."""

    def __init__(self, hardware: Hardware, constants: Constants) -> None:
        sustained = hardware.peak_flops * hardware.sustained_fraction
        self.products = sustained * constants.products
        self.attention = hardware.peak_flops * hardware.attention_fraction * constants.attention
        self.memory = hardware.memory_bytes_per_second * constants.memory
        self.per_node = hardware.devices_per_node
        latency = hardware.latency_s
        self.latency_s = _LATENCY_S if latency is None else latency
        self.constants = constants
        self._hardware = hardware

    @property
    def link(self) -> float:
        """Attained speed of the link within a node, in bytes/s."""
        speed = self._hardware.link_bytes_per_second
        if speed is None:
            raise UsageError(
                f"hardware {self._hardware.name!r}: link_bytes_per_second is not known, and "
                "devices of one node talk over it: write it into the file, or measure it with "
                "llmb calibrate --nproc 2"
            )
        return speed * self.constants.link

    @property
    def message(self) -> float:
        """Attained speed of a message between two ranks of a node, in bytes/s."""
        speed = self._hardware.message_bytes_per_second
        return self.link if speed is None else speed * self.constants.link

    @property
    def network(self) -> float:
        """Attained speed of the network between nodes, in bytes/s."""
        speed = self._hardware.network_bytes_per_second
        if speed is None:
            raise UsageError(
                f"hardware {self._hardware.name!r}: network_bytes_per_second is not known, and the "
                f"job needs more than a node, of {self.per_node}: write it into the file, or say "
                "it to llmb calibrate with --network-gbps"
            )
        return speed * self.constants.network

    def product(self, rows: float, inner: float, columns: float) -> _Passes:
        """Return the times of ``[rows, inner] @ [inner, columns]`` and of both gradients."""
        moved = VALUE * (rows * inner + inner * columns + rows * columns)
        work = 2 * rows * inner * columns
        each = max(work / self.products, moved / self.memory) + self.constants.launch_s
        return _Passes(each, 2 * each)


def _layer_products(job: Job, tokens: float, rates: _DeviceRates) -> _Passes:
    model, hidden = job.model, job.model.hidden
    inner = model.intermediate / job.tp
    found = [
        rates.product(tokens, hidden, (1 + 2 * model.kv_share) * model.width / job.tp),
        rates.product(tokens, model.width / job.tp, hidden),
        *[rates.product(tokens, hidden, inner)] * model.up_matrices,
        rates.product(tokens, inner, hidden),
    ]
    return _Passes(sum(one.forward for one in found), sum(one.backward for one in found))


def _attention(job: Job, rates: _DeviceRates) -> _Passes:
    """Return attention's times: fused kernels skip the masked half, stored scores do not."""
    model = job.model
    square = job.micro_batch * model.sequence**2
    flops = 4 * square * model.width / job.tp
    if job.fused_attention:
        forward = flops / 2 / rates.attention
        return _Passes(forward, 2.5 * forward)
    scores = square * model.heads / job.tp
    moved = rates.constants.scores * _SCORES * scores * VALUE / rates.memory
    return _Passes(flops / rates.products + moved, 2 * flops / rates.products + moved)


def _elementwise(job: Job, tokens: float, rates: _DeviceRates) -> _Passes:
    model = job.model
    outer = _ELEMENTWISE * model.hidden / (job.tp if job.sequence_parallel else 1)
    inner = (1 + model.up_matrices) * model.intermediate / job.tp
    factor = 1.0 if job.fused_elementwise else rates.constants.unfused
    forward = factor * VALUE * tokens * (outer + inner) / rates.memory
    return _Passes(forward, _ELEMENTWISE_BACKWARD * forward)


def _tensor_parallel(job: Job, tokens: float, rates: _DeviceRates) -> float:
    """Return the all-reduce time of one layer: four all-reduces, six with full recomputation.

    With sequence parallelism, all-gather and reduce-scatter replace an all-reduce at equal traffic.
    If ``tp`` is larger than a node, the network's speed counts.
    """
    if job.tp == 1:
        return 0.0
    speed = rates.link if job.tp <= rates.per_node else rates.network
    moved = 2 * (job.tp - 1) / job.tp * tokens * job.model.hidden * VALUE
    sums = 6 if job.recompute == "full" else 4
    shown = _TP_SHOWN if job.overlapped_tp else 1.0
    return shown * sums * (moved / speed + rates.latency_s)


def _between_stages(job: Job, tokens: float, rates: _DeviceRates) -> float:
    """Return the transfer time of the first micro-batch, forward and back; the rest is hidden."""
    if job.pp == 1:
        return 0.0
    moved = tokens * job.model.hidden * VALUE / (job.tp if job.sequence_parallel else 1)
    speed = rates.message if job.devices <= rates.per_node else rates.network
    return 2 * (job.pp - 1) * moved / speed


def _data_parallel(job: Job, passes: _Passes, rates: _DeviceRates) -> float:
    """Return the exposed time of weight all-gathers and gradient sums."""
    weights = job.rank_parameters * VALUE
    overlap = rates.constants.overlap
    if job.dp == 1:
        return 0.0
    if job.zero >= 2:
        one = _ring(job, weights, rates)
        gathers = 2 if job.zero == 3 else 1
        forward, backward = one, (gathers - 1) * one + one
        return job.micro_batches * (
            _shown(forward, passes.forward, overlap) + _shown(backward, passes.backward, overlap)
        )
    # Sums overlap the last micro-batch's backward pass, all-gathers the next forward pass.
    sums = _ring(job, job.rank_parameters * GRADIENT, rates)
    if job.zero == 1:
        gathered = max(0.0, _ring(job, weights, rates) - overlap * passes.forward)
        return max(0.0, sums - overlap * passes.backward) + gathered
    return max(0.0, 2 * sums - overlap * passes.backward)


def _ring(job: Job, moved: float, rates: _DeviceRates) -> float:
    """Return the time of one pass of a ring over all replicas.

    Replicas in one node divide the node's traffic among their network ports. Example: with 8
    devices per node and ``tp=2``, the ring has four times the network speed of one device.
    """
    moved *= (job.dp - 1) / job.dp
    if job.dp * job.tp <= rates.per_node:
        return moved / rates.link
    return moved / (rates.network * max(1, rates.per_node // job.tp))


def _shown(traffic: float, work: float, overlap: float) -> float:
    hidden = max(0.0, traffic - overlap * work)
    return hidden + (1 - overlap) * _LEAK * min(traffic, work)
