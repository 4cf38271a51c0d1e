"""Memory of one rank at each moment of a step; ``llmb.workloads.memory`` takes the peak."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property

from llmb.families import BlockBytes, Slice, family_of
from llmb.reference.shapes import Shape
from llmb.workloads.memory_job import Memory, MemoryJob

#: Bytes per attention score in a fused system that stores scores: softmax and dropout output.
_SCORE = 4
#: Bytes per logit in a fused system: BF16, float32, and the float32 gradient.
_LOGIT = 10
#: Slices of which each rank of tensor parallelism has its part of the matrix.
_PARTS = frozenset(
    {Slice.COLUMNS, Slice.COLUMNS_GATHERED, Slice.ROWS, Slice.WORDS, Slice.HEAD, Slice.ELEMENTS}
)


@cache
def rank_parameters(shape: Shape, tp: int) -> tuple[int, int, int]:
    """Return parameters on a rank of ``tp``: of a block, before the blocks, and after the blocks.

    The families say how ranks share a module; biases of products whose sums are shared are whole.
    """
    family = family_of(shape)
    prefix = family.matrices["q"].partition("{}")[0]
    inside, outside = family.slices_of_block(shape), family.other_slices
    block = before = after = 0
    for name, size in family.parameter_sizes(shape).items():
        count = 1
        for each in size:
            count *= each
        module, _, leaf = name.rpartition(".")
        if name.startswith(prefix):
            number, _, inner = module.removeprefix(prefix).partition(".")
            kind = inside[inner]
        else:
            number, kind = "", outside.get(name) or outside[module]
        if kind in _PARTS and not (kind is Slice.ROWS and leaf == "bias"):
            count = -(-count // tp)
        if number == "0":
            block += count
        elif not number and ("embed" in name or ".wte" in name or ".wpe" in name):
            before += count
        elif not number:
            after += count
    return block, before, after


@dataclass(frozen=True)
class RankShare:
    """A rank's share of a job: its blocks, and the parameters before and after the blocks."""

    job: MemoryJob
    layers: int
    #: Blocks of the rank's longest stage: stages run one at a time.
    at_once: int
    has_embedding: bool
    has_head: bool
    #: Micro-batches whose activations are there at the same time.
    in_flight: float
    #: Stages on other ranks that send states or gradients to this rank.
    senders: int = 0

    def moments(self) -> Iterator[Memory]:
        """Yield the memory at each moment of a step that can be the fullest."""
        if self.job.stored.fused:
            yield self._fused()
            return
        activations, blocks = self._activations, self.at_once
        if self.has_head:
            yield self._at(blocks, activations.at_loss, logits=self._logits())
            # Then the head goes backward, with the gradient of the logits; a stage keeps more.
            rest = self._logits() * (0.75 if self.job.parallelism.pp > 1 else 1 / 3)
            if self._is_early:  # the head's gradient is added to an earlier one
                gradient = self.job.stored.gradient * self._head
                yield self._at(blocks, activations.at_loss + gradient, logits=rest)
            elif self._gathers_again:  # and its weights arrive
                local, shared = self._gradients(-1, False)
                arriving = 2 * self.job.stored.value * (self._before + self._after)
                yield self._memory(local, shared, activations.at_loss, arriving, rest)
        if self._is_fsdp and self.job.parallelism.dp_shard > 1 and not self._sums_late:
            yield from self._arriving()
        # A stage's input, its output, and the gradient of the output.
        ends = 0.0 if self.has_head else activations.head + self._state
        for i in sorted({blocks - 1, blocks - 2, 1, 0} & {*range(blocks)}):
            before = activations.of_blocks(i)
            yield self._at(i, before + activations.feed_forward + ends)
            yield self._at(i, before + activations.norm + ends, own=True)
        yield from self._ends()

    def held(self) -> Memory:
        """Return weights, gradients, moments and buffers that outlast a backward pass."""
        if self.job.stored.fused:
            return replace(self._fused(), activations=0.0, logits=0.0)
        gradients = self.job.stored.gradient * self._parameters / self.job.parallelism.dp_shard
        return replace(self._memory(gradients, 0.0, 0.0, 0.0), activations=0.0)

    def at_loss(self) -> float:
        """Return the bytes of activations and logits when the loss is computed."""
        activations = self._activations
        others = (self.in_flight - 1) * activations.in_flight
        return activations.at_loss + others + self._logits()

    # -- parameters and what follows from them --------------------------------------------------

    @cached_property
    def _block(self) -> float:
        return rank_parameters(self.job.shape, self.job.parallelism.tp)[0]

    @cached_property
    def _before(self) -> float:
        """Parameters before the blocks."""
        return rank_parameters(self.job.shape, self.job.parallelism.tp)[1] * self.has_embedding

    @cached_property
    def _after(self) -> float:
        """Parameters after the blocks."""
        _, before, after = rank_parameters(self.job.shape, self.job.parallelism.tp)
        if not self.has_embedding and family_of(self.job.shape).tied:
            after += before  # the last stage has a copy of the embedding
        return after * self.has_head

    @cached_property
    def _parameters(self) -> float:
        return self.layers * self._block + self._before + self._after

    @cached_property
    def _words(self) -> float:
        """Parameters of the word embedding, whole, which is also a tied head."""
        return self.job.shape.vocab_size * self.job.shape.hidden_size

    @cached_property
    def _head(self) -> float:
        """Parameters with a gradient as soon as the head has gone backward."""
        tied = family_of(self.job.shape).tied
        return (self._words / self.job.parallelism.tp if tied else self._after) * self.has_head

    @cached_property
    def _state(self) -> float:
        """Bytes of a micro-batch between two stages, or 0 without a pipeline."""
        value, how = self.job.stored.value * self.job.shape.hidden_size, self.job.parallelism
        return self.job.tokens * BlockBytes(norms=value).of_rank(how) * (how.pp > 1)

    @cached_property
    def _is_fsdp(self) -> bool:
        how = self.job.parallelism
        return how.replicas > 1 and how.is_shared

    @property
    def _gathers_again(self) -> bool:
        how = self.job.parallelism
        return how.reshard_after_forward and how.dp_shard > 1

    @property
    def _is_early(self) -> bool:
        """Whether earlier micro-batches have left gradients when memory is fullest."""
        return self.job.micro_batches > self.in_flight

    @property
    def _sums_late(self) -> bool:
        """Whether replicas sum gradients after all micro-batches of a pipeline."""
        return self.job.parallelism.pp > 1 and self.job.micro_batches > 1

    @property
    def _reduced(self) -> int:
        """Bytes of a gradient on its way."""
        return 4 if self.job.stored.mixed else self.job.stored.gradient

    def _at(
        self,
        block: int,
        activations: float,
        *,
        own: bool = False,
        more: float = 0.0,
        logits: float = 0.0,
    ) -> Memory:
        """Return the memory while ``block`` goes backward; ``own``: its gradients are there."""
        done = self.at_once - 1 - block
        local, shared = self._gradients(done, own and done >= 0)
        return self._memory(local, shared, activations, more + self._gathered(block), logits)

    def _memory(
        self, local: float, shared: float, activations: float, buffers: float, logits: float = 0.0
    ) -> Memory:
        """Return the memory with gradients of ``local`` bytes in full and ``shared`` in shards."""
        job, stored, how = self.job, self.job.stored, self.job.parallelism
        parameters = self._parameters / how.dp_shard
        others = (self.in_flight - 1) * self._activations.in_flight
        if how.replicas > 1 and not how.is_shared:  # DDP's buckets
            buffers += stored.gradient * self._parameters
        # torch has a buffer for each message of a step: of each micro-batch, from each neighbour.
        buffers += self.senders * job.micro_batches * self._state
        return Memory(
            weights=stored.weight * parameters,
            gradients=local + shared,
            moments=job.moments * stored.moment * parameters,
            master=stored.master * parameters,
            activations=activations + others,
            buffers=buffers,
            logits=logits,
        )

    def _gradients(self, done: int, own: bool) -> tuple[float, float]:
        """Return bytes of gradients in full and in shards, with ``done`` blocks gone backward."""
        stored, shards = self.job.stored, self.job.parallelism.dp_shard
        started = done >= 0
        grown = self._head * started + (max(done, 0) + own) * self._block
        if not self._is_fsdp:
            everything = self._parameters + self._spread_words
            return stored.gradient * (everything if self._is_early else grown), 0.0
        if self._sums_late:
            everything = self._parameters + self._spread_words
            return self._reduced * everything if self._is_early else stored.value * grown, 0.0
        reduced = max(done, 0) * self._block
        shared = stored.gradient * reduced / shards
        if self._is_early:
            return self._reduced * (self._parameters - reduced), shared
        return stored.value * (grown - reduced), shared

    @property
    def _spread_words(self) -> float:
        """Parameters by which a sliced embedding's gradient is larger: slices sum it whole."""
        tp = self.job.parallelism.tp
        return self._words * (1 - 1 / tp) * self.has_embedding

    def _gathered(self, block: int) -> float:
        """Return bytes of gathered weights, and of gradients on their way, at ``block``."""
        if not self._is_fsdp:
            return 0.0
        value, ends = self.job.stored.value, self._before + self._after
        full = value * self._parameters
        if self._sums_late:
            return full
        if block == self.at_once:  # at the loss, with the buffer in which the last block arrived
            return value * (ends + self._block) if self._gathers_again else full
        sent = self._reduced * self._block if block < self.at_once - 1 else 0.0
        if self._gathers_again:  # the next block arrives in a buffer of its own
            return value * (ends + self._block * (2 if block else 1)) + sent
        return value * (ends + (block + 1) * self._block) + sent

    def _arriving(self) -> Iterator[Memory]:
        """Yield the moments at which FSDP gathers the first block and the last block.

        Weights arrive in a buffer. The buffer before it is kept until the next one is there.
        """
        value, ends = self.job.stored.value, self._before + self._after
        local, shared = self._gradients(-1, False)
        first = value * 2 * (ends + self._block)
        yield self._memory(local, shared, 0.0, first)
        weights = ends + self._block if self._gathers_again else self._parameters
        last = value * (weights + 2 * self._block)
        yield self._memory(local, shared, self._activations.of_blocks(self.at_once), last)

    def _ends(self) -> Iterator[Memory]:
        """Yield the moments at the end of a backward pass: embedding, and sums of the rest."""
        job, stored, how = self.job, self.job.stored, self.job.parallelism
        tied, sliced = family_of(job.shape).tied, how.tp > 1
        words = stored.gradient * self._words * self.has_embedding
        spread = stored.gradient * self._spread_words
        # A tied head's gradient is added to the embedding's; a sliced one is cut after its sum.
        temporary = words * (self._is_early + 2 * tied) + words / how.tp * sliced
        if not self._is_fsdp:
            full = stored.gradient * self._parameters + spread
            yield self._memory(full, 0.0, temporary, 0.0)
            return
        if self._sums_late:
            local, shared = self._gradients(self.at_once, False)
            yield self._memory(local, shared, temporary, self._gathered(0))
            return
        ends = self._before + self._after
        shared = stored.gradient * self.layers * self._block / how.dp_shard
        local = stored.value * ends + spread
        arrived = stored.value * ends + self._reduced * self._block
        yield self._memory(local, shared, temporary, arrived)
        yield self._memory(local, shared, 0.0, self._reduced * ends)

    # -- activations ----------------------------------------------------------------------------

    @cached_property
    def _activations(self) -> _Activations:
        job, stored, how = self.job, self.job.stored, self.job.parallelism
        family, shape, tokens = family_of(job.shape), job.shape, job.tokens
        # Autocast keeps sums in float32, and 16-bit copies of the weights. FSDP gathers 16 bits.
        mixed = stored.mixed * (not self._is_fsdp)
        state = shape.hidden_size * (4 if mixed else stored.value)
        scores = 0.0
        if job.scores and vars(shape).get("dropout"):
            scores = 4 * shape.num_attention_heads * shape.sequence_length / how.tp
        inputs = BlockBytes(norms=state).of_rank(how)
        every = family.block_bytes(shape, stored.value, mixed).of_rank(how) + 3 * scores
        kept = every
        if job.recompute == "op":
            kept = family.product_bytes(shape, stored.value, mixed).of_rank(how)
        copies = stored.value * mixed
        again = round(self.at_once * job.recomputed / shape.num_hidden_layers)
        columns = (2 if family.is_gated(shape) else 1) * shape.intermediate_size * stored.value
        feed = BlockBytes(norms=state, sliced=columns).of_rank(how)
        norm = 4 * state if family.centred else 26 * shape.hidden_size
        extra = inputs if again or job.recompute == "op" else 0.0
        return _Activations(
            again,
            tokens * inputs,
            tokens * kept + copies * self._block,
            self.at_once,
            tokens * (every + max(feed, scores) + extra) + copies * self._block,
            tokens * (BlockBytes(norms=norm).of_rank(how) + extra),
            self._between(),
            # A pipeline's stage keeps the logits, and the loss a copy.
            2 * tokens * shape.vocab_size * stored.value * self.has_head,
        )

    def _between(self) -> float:
        """Return the bytes between the last block and the logits, or of a stage's ends."""
        job, stored, how = self.job, self.job.stored, self.job.parallelism
        hidden = job.shape.hidden_size
        found = self._state * (
            (not self.has_embedding) + (not self.has_head)
        )  # received, and sent on
        if self.has_head:
            kept = BlockBytes(norms=8 * hidden, inputs=stored.value * hidden).of_rank(how)
            copies = stored.value * stored.mixed * (not self._is_fsdp)
            found += job.tokens * kept + copies * self._head
        return found

    def _logits(self) -> float:
        """Return the bytes of the logits and of their copies in the loss."""
        job, stored, how = self.job, self.job.stored, self.job.parallelism
        if not self.has_head:
            return 0.0
        words, part = job.shape.vocab_size, job.shape.vocab_size / how.tp
        if how.loss_parallel and how.tp > 1:  # three copies in float32, and two of values
            return job.tokens * part * (12 + 2 * stored.value)
        loss = (4 if how.pp > 1 else 3) * words * (4 if stored.mixed else stored.value)
        gather = (3 * words + part) * stored.value if how.tp > 1 else 0.0
        return job.tokens * max(loss, gather)

    def _fused(self) -> Memory:
        """Return the moment of the loss: gradients have a buffer of their own all the time."""
        job, stored, how = self.job, self.job.stored, self.job.parallelism
        parameters, hidden = self._parameters, job.shape.hidden_size
        shared = {level: how.dp_replicate if job.zero >= level else 1 for level in (1, 2, 3)}
        # ZeRO-3 gathers weights layer by layer: two layers are in memory at a time.
        gathered = 2 * self._block if job.zero == 3 else 0.0
        kept, working = _fused_layer(job), 0.0
        if job.recompute == "full":
            kept, working = 2 * hidden / (how.tp if how.sequence_parallel else 1), kept
        return Memory(
            weights=stored.weight * parameters / shared[3],
            gradients=stored.gradient * parameters / shared[2],
            moments=job.moments * stored.moment * parameters / shared[1],
            master=stored.master * parameters / shared[1],
            activations=job.tokens * (self.in_flight * self.layers * kept + working),
            buffers=2 * stored.weight * gathered,
            logits=_LOGIT * job.tokens * job.shape.vocab_size / how.tp if self.has_head else 0.0,
        )


@dataclass(frozen=True)
class _Activations:
    """Bytes of a rank's activations of one micro-batch."""

    #: Blocks that recompute, and bytes of each; they count as the first blocks.
    recomputing: int
    input: float
    #: Bytes of each further block, and the number of all blocks.
    kept: float
    blocks: int
    #: At work in a block's feed-forward network, and in its first norm, with its activations.
    feed_forward: float
    norm: float
    #: Between the last block and the logits, and logits with a copy.
    head: float
    logits: float

    def of_blocks(self, number: int) -> float:
        """Return the bytes that the first ``number`` blocks keep."""
        low = min(number, self.recomputing)
        return low * self.input + (number - low) * self.kept

    @property
    def at_loss(self) -> float:
        """Bytes that all blocks and the head keep."""
        return self.of_blocks(self.blocks) + self.head

    @property
    def in_flight(self) -> float:
        """Bytes of a micro-batch between its forward pass and its backward pass."""
        return self.at_loss + self.logits


def _fused_layer(job: MemoryJob) -> float:
    """Return a layer's activation bytes per token in a fused system, with attention recomputed."""
    shape, how, family = job.shape, job.parallelism, family_of(job.shape)
    hidden = shape.hidden_size
    share = family.key_value_heads(shape) / shape.num_attention_heads
    matrices = 3 if family.is_gated(shape) else 2
    queries = shape.num_attention_heads * shape.head_dim
    sliced = 2 * queries * (1 + 2 * share) + 2 * queries + 2 * shape.intermediate_size * matrices
    if not job.fused_attention and job.recompute == "none":
        sliced += _SCORE * shape.num_attention_heads * shape.sequence_length
    # Inputs of both norms, and of attention and feed-forward.
    return BlockBytes(norms=8 * hidden, sliced=sliced).of_rank(how)
