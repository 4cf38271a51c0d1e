"""The ``config.json`` of a Hugging Face checkpoint: the sizes it states, or why it is refused.

A configuration that makes another function than the reference computes is refused: weights are
read to be computed with, not to be multiplied by something.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, PositiveFloat, PositiveInt, ValidationError

from llmb.errors import UsageError
from llmb.reference.shapes import Gpt2Shape, LlamaShape, Shape

#: Fields of a shape that are the run's own and not the weights'.
_OWN = {"sequence_length", "padding_idx", "initializer_range"}
#: Approximations of GELU by tanh; the reference computes it exactly.
_BY_TANH = {"gelu_new", "gelu_fast", "gelu_pytorch_tanh"}


class _Config(BaseModel):
    """What is read of every configuration; the rest steers training or the library."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    vocab_size: PositiveInt
    initializer_range: PositiveFloat = 0.02
    pad_token_id: int | None = None
    quantization_config: Mapping[str, Any] | None = None


class _LlamaConfig(_Config):
    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    num_hidden_layers: PositiveInt
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt | None = None
    head_dim: PositiveInt | None = None
    max_position_embeddings: PositiveInt = 2048
    rms_norm_eps: PositiveFloat = 1e-6
    rope_theta: PositiveFloat = 10000.0
    #: Both names of one thing; the second since transformers 5, with the base inside.
    rope_scaling: Mapping[str, Any] | None = None
    rope_parameters: Mapping[str, Any] | None = None
    hidden_act: str = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False


class _Gpt2Config(_Config):
    n_embd: PositiveInt
    n_layer: PositiveInt
    n_head: PositiveInt
    n_inner: PositiveInt | None = None
    n_positions: PositiveInt
    layer_norm_epsilon: PositiveFloat = 1e-5
    activation_function: str = "gelu_new"
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    add_cross_attention: bool = False
    tie_word_embeddings: bool = True


class _Kind(BaseModel):
    model_type: str


_KINDS: dict[str, type[_LlamaConfig] | type[_Gpt2Config]] = {
    "llama": _LlamaConfig,
    "gpt2": _Gpt2Config,
}
#: What a configuration must say for the reference to compute its function.
_REQUIRED: dict[str, dict[str, object]] = {
    "llama": {
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
    },
    "gpt2": {
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
    },
}


def shape_of(folder: Path) -> LlamaShape | Gpt2Shape:
    """Return the shape of the checkpoint in ``folder``, with the longest sequence it allows.

    Raises:
        UsageError: no such checkpoint, or its model is none that the reference computes.
    """
    config = _read(folder)
    return _llama(folder, config) if isinstance(config, _LlamaConfig) else _gpt2(folder, config)


def check_shape(folder: Path, shape: Shape) -> tuple[str, ...]:
    """Compare the configuration in ``folder`` with ``shape``; return what a user should know.

    Raises:
        UsageError: they are different models.
    """
    stated = shape_of(folder)
    if type(stated) is not type(shape):
        raise UsageError(
            f"--weights {str(folder)!r} is a {_family(stated)}: the workload is another family"
        )
    for field, value in vars(stated).items():
        if field not in _OWN and getattr(shape, field) != value:
            raise UsageError(
                f"--weights {str(folder)!r} has {field} {value}, the workload "
                f"{getattr(shape, field)}: choose the workload that the weights are of"
            )
    if shape.sequence_length > stated.sequence_length:
        raise UsageError(
            f"--sequence-length {shape.sequence_length} is longer than the model of --weights "
            f"{str(folder)!r} has positions: use at most {stated.sequence_length}"
        )
    config = _read(folder)
    if isinstance(config, _Gpt2Config) and config.activation_function in _BY_TANH:
        return (
            f"the weights were trained with {config.activation_function}, GELU approximated by "
            "tanh; this model computes exact GELU, and its logits differ slightly from the "
            "original's",
        )
    return ()


def _family(shape: Shape) -> str:
    return "llama" if isinstance(shape, LlamaShape) else "gpt2"


def _llama(folder: Path, config: _LlamaConfig) -> LlamaShape:
    shape = LlamaShape(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads or config.num_attention_heads,
        sequence_length=config.max_position_embeddings,
        rms_norm_eps=config.rms_norm_eps,
        rope_theta=_rope_theta(folder, config),
        initializer_range=config.initializer_range,
        padding_idx=config.pad_token_id,
    )
    if shape.hidden_size % shape.num_attention_heads or config.head_dim not in (
        None,
        shape.head_dim,
    ):
        raise UsageError(
            f"--weights {str(folder)!r}: heads of {config.head_dim} are not hidden_size "
            f"{shape.hidden_size} / num_attention_heads {shape.num_attention_heads}, as they are "
            "in the llama of llmb"
        )
    return shape


def _gpt2(folder: Path, config: _Gpt2Config) -> Gpt2Shape:
    if config.activation_function not in {"gelu", *_BY_TANH}:
        raise UsageError(
            f"--weights {str(folder)!r}: activation_function is {config.activation_function!r}: "
            "the gpt2 of llmb has 'gelu'"
        )
    return Gpt2Shape(
        vocab_size=config.vocab_size,
        hidden_size=config.n_embd,
        intermediate_size=config.n_inner or 4 * config.n_embd,
        num_hidden_layers=config.n_layer,
        num_attention_heads=config.n_head,
        sequence_length=config.n_positions,
        max_position_embeddings=config.n_positions,
        layer_norm_epsilon=config.layer_norm_epsilon,
        initializer_range=config.initializer_range,
    )


def _rope_theta(folder: Path, config: _LlamaConfig) -> float:
    """Return the base of the rotary angles; they are not scaled here."""
    stated = {**(config.rope_scaling or {}), **(config.rope_parameters or {})}
    kind = stated.get("rope_type", stated.get("type", "default"))
    if kind != "default" or stated.get("partial_rotary_factor", 1.0) != 1.0:
        what = f"scaled ({kind})" if kind != "default" else "applied to a part of each head"
        raise UsageError(
            f"--weights {str(folder)!r}: its rotary positions are {what}; llmb's are plain, and "
            "would make another model of these weights: use weights without rope scaling"
        )
    theta = stated.get("rope_theta", config.rope_theta)
    if isinstance(theta, bool) or not isinstance(theta, (int, float)) or not theta > 0:
        raise UsageError(f"--weights {str(folder)!r}: rope_theta is {theta!r}, which is no base")
    return float(theta)


def _read(folder: Path) -> _LlamaConfig | _Gpt2Config:
    """Return the configuration in ``folder``, valid for what the reference computes."""
    path = folder / "config.json"
    try:
        raw = path.read_bytes()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(
            f"--weights {str(folder)!r} is no Hugging Face checkpoint: config.json: {why}"
        ) from None
    try:
        kind = _Kind.model_validate_json(raw).model_type
        if kind not in _KINDS:
            raise UsageError(
                f"--weights {str(folder)!r} is a {kind!r}: llmb reads weights of "
                f"{' and '.join(_KINDS)}"
            )
        config = _KINDS[kind].model_validate_json(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UsageError(f"{str(path)!r}: {where + ': ' if where else ''}{first['msg']}") from None
    if config.quantization_config is not None:
        raise UsageError(
            f"--weights {str(folder)!r} is quantised: use the weights it was made from"
        )
    for field, value in _REQUIRED[kind].items():
        found = getattr(config, field)
        if found != value:
            raise UsageError(
                f"--weights {str(folder)!r}: {field} is {found!r}: the {kind} of llmb has {value!r}"
            )
    return config
