"""Read the gradients of the probe ``pairs``: the distance of units that should be equal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from llmb.families import TRANSFORM
from llmb.observe.pairs_layout import PairsLayout
from llmb.records.precision_recipe import FORWARD, INPUT, PV, QK, WEIGHT, Direction, PairSeen
from llmb.reference.shapes import Shape

#: Bits that a forward pair shows beyond other pairs, if the pair's error comes from attention
#: scores. Each figure lies between two measurements: E4M3 in this product alone, and E4M3 in all
#: products.
_BITS_OF_SCORES = {"q": -0.7, "k": -0.2, QK: 0.3}
_BITS_OF_UNMASKED_SCORES = {"q": -0.4, "k": 0.1, QK: 0.9}


def seen(shape: Shape, gradient: Callable[[str], Tensor | None]) -> Iterator[PairSeen]:
    """Yield the difference and the length of each pair, by product, direction and layer.

    ``gradient`` returns the gradient of a canonical parameter of the model of ``shape``, None if
    the parameter has no gradient.
    """
    return _PairsReader(PairsLayout(shape)).seen(gradient)


@dataclass(frozen=True)
class _PairsReader:
    """Reads gradients at the positions that ``PairsLayout`` gives for the probe's units."""

    _at: PairsLayout

    def seen(self, gradient: Callable[[str], Tensor | None]) -> Iterator[PairSeen]:
        """Yield the difference and the length of each pair; see the function ``seen``."""
        family = self._at.family
        head, embedding = gradient(family.name("head", 0)), gradient(family.name("embedding", 0))
        yield from map(self._named, self._seen_of_head(head, embedding))
        # Input words also have the embedding's gradient.
        if head is not None and family.family.tied:
            head = head[self._at.shape.vocab_size // 2 :]
        if family.transformed:
            transform = gradient(family.name(TRANSFORM, 0))
            yield from map(self._named, self._seen_of_transform(transform, head, embedding))
        for layer in range(self._at.shape.num_hidden_layers):
            names = {kind: family.name(kind, layer) for kind in (*family.readers, "o", "down")}
            # Each parameter once, in equal order on all ranks: reading may be a collective call.
            every = {name: gradient(name) for name in dict.fromkeys(names.values())}
            found = {
                kind: None if (value := every[name]) is None else family.part(kind, value)
                for kind, name in names.items()
            }
            yield from map(self._named, self._seen_of_layer(layer, found, head, embedding))

    def _named(self, pair: PairSeen) -> PairSeen:
        """Name the product as in the family's table, and scale the pair to show as many bits."""
        more = _BITS_OF_SCORES if self._at.family.family.causal else _BITS_OF_UNMASKED_SCORES
        bits = more.get(pair.product, 0.0) if pair.direction == FORWARD else 0.0
        name = self._at.family.product(pair.product)
        return pair.model_copy(update={"product": name, "length": pair.length / 2.0**bits})

    def _seen_of_head(self, head: Tensor | None, embedding: Tensor | None) -> Iterator[PairSeen]:
        begin, end = self._at.pairs_of_words[0]
        base = slice(0, self._at.groups.numel())
        if head is not None:
            one, other = head[begin:end:2, base], head[begin + 1 : end : 2, base]
            yield _seen("head", FORWARD, 0, one, other)
            first = self._at.shape.vocab_size // 2 if self._at.family.family.tied else 0
            yield self._seen_of_triples("head", 0, head[first:])
        yield from self._seen_in_silence(0, "head", embedding)

    def _seen_of_transform(
        self, transform: Tensor | None, head: Tensor | None, embedding: Tensor | None
    ) -> Iterator[PairSeen]:
        if head is not None:
            apart, usual = self._at.groups.T[2:4]
            yield _seen(TRANSFORM, FORWARD, 0, head[:, usual], head[:, apart])
        if transform is not None:
            yield self._seen_of_triples(TRANSFORM, 0, transform)
        yield from self._seen_in_silence(0, TRANSFORM, embedding)

    def _seen_in_silence(
        self, layer: int, kind: str, embedding: Tensor | None
    ) -> Iterator[PairSeen]:
        silent = self._at.silent.get((kind, layer))
        if embedding is not None and silent is not None:
            one, other = silent.T
            seen = _seen(kind, INPUT, layer, embedding[:, other], embedding[:, one])
            if kind == "v":
                # Errors of rows add up by the square root. So do the gradients of rows, except in
                # one of the source channels, with a single sign (``Pairs._written``).
                channels = len(self._at.own("o", layer).back)
                rows = len(self._at.value_rows.also_equal)
                more = len(self._at.roles(layer)) * (rows + channels - 1) / channels
                seen = seen.model_copy(update={"length": seen.length / math.sqrt(more)})
            yield seen

    def _seen_of_triples(self, kind: str, layer: int, gradient: Tensor) -> PairSeen:
        plus, minus, middle, _ = (_host(gradient[:, columns]) for columns in self._at.triples.T)
        return _seen(kind, WEIGHT, layer, 2 * middle, plus + minus)

    def _seen_of_layer(
        self,
        layer: int,
        found: Mapping[str, Tensor | None],
        head: Tensor | None,
        embedding: Tensor | None,
    ) -> Iterator[PairSeen]:
        width, roles, rows = self._at.shape.head_dim, self._at.roles(layer), self._at.rows
        for kind in self._at.family.readers:
            gradient_of = found[kind]
            if gradient_of is not None:
                yield self._seen_of_triples(kind, layer, gradient_of)
            yield from self._seen_in_silence(layer, kind, embedding)
        if head is not None:
            for kind in ("o", "down"):
                one, other = self._at.own(kind, layer).forward.T
                yield _seen(kind, FORWARD, layer, head[:, other], head[:, one])
        for kind, shows in (("q", "k"), ("k", "q")):  # gradient of scores times the other operand
            values = found[shows]
            if values is not None and kind in roles:
                one, other = (values[self._at.block(shows, n)] for n in (0, roles[kind]))
                yield _seen(kind, FORWARD, layer, one, other)
        out, down, value = found["o"], found["down"], found["v"]
        if out is not None:
            heads = {role: out[:, self._at.block("o", n)] for role, n in roles.items()}
            base = heads["base"]
            if "exchanged" in heads:
                seen = _seen(QK, FORWARD, layer, base, heads["exchanged"])
                even = heads.get("even", out[:, width : 2 * width])
                by_scores = float((_host(base) - _host(even)).norm())
                # The error of a score grows with the size of the scores.
                yield seen.model_copy(update={"length": self._at.deviation_of_scores * by_scores})
            one, other = self._at.value_rows.apart.T
            yield _seen("v", FORWARD, layer, base[:, one], base[:, other])
            for kind, direction, rows_of in (
                ("o", WEIGHT, self._at.value_rows.exact),
                (PV, FORWARD, self._at.value_rows.rounded),
            ):
                plus, minus, middle = (_host(base[:, row]) for row in rows_of.T)
                yield _seen(kind, direction, layer, 2 * middle, plus + minus)
        if down is not None:
            usual, gates, ups = (down[:, columns] for columns in rows.apart.T)
            if self._at.family.gated:
                yield _seen("gate", FORWARD, layer, usual, gates)
            yield _seen("up", FORWARD, layer, usual, ups)
            plus, minus, middle = (_host(down[:, columns]) for columns in rows.triples.T)
            yield _seen("down", WEIGHT, layer, 2 * middle, plus + minus)
        if value is not None:
            heads_at = torch.tensor([n * width for n in roles.values()])[:, None]
            one, other, _ = (
                (rows_of + heads_at).flatten() for rows_of in self._at.value_rows.equal_back.T
            )
            yield _seen("o", INPUT, layer, value[other], value[one])
        read = found["gate" if self._at.family.gated else "up"]
        if read is not None:
            one, other, _ = rows.equal_back.T
            yield _seen("down", INPUT, layer, read[other], read[one])


def _host(value: Tensor) -> Tensor:
    return value.detach().to("cpu").double()


def _seen(product: str, direction: Direction, layer: int, right: Tensor, other: Tensor) -> PairSeen:
    """Return the distance of ``other`` from ``right``, the correct value of ``other``."""
    right, other = _host(right), _host(other)
    figures = float((right - other).norm()), float(right.norm())
    if not all(map(math.isfinite, figures)):
        figures = 0.0, 0.0
    difference, length = (float(f"{figure:.5g}") for figure in figures)
    return PairSeen(
        product=product, direction=direction, layer=layer, difference=difference, length=length
    )
