"""The model after post-processing: its loss, its parameters by name, a few steps of training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from llmb.plugin import ParameterView
from llmb.reference.loss import IGNORED
from llmb.sdk.report import CheckError, SkipError
from llmb.sdk.subject import Subject

#: Largest distance of a first loss from ln(vocabulary): untrained logits are almost uniform.
_FAR_FROM_UNIFORM = 1.0
_NAMED_AT_MOST = 3


def post_processing(subject: Subject) -> str:
    """Ask the model for the loss of a batch of random tokens, and of its first targets alone."""
    processed, ids = subject.processed, subject.batch(0).to(subject.config.device)
    value, uniform = _loss(subject, ids, ids), math.log(processed.shape.vocab_size)
    if not math.isfinite(value) or abs(value - uniform) > _FAR_FROM_UNIFORM:
        raise CheckError(
            f"the first loss is {value:.3f}: an untrained model's is about ln(vocabulary) = "
            f"{uniform:.2f}, so post-processing has changed the function of the model"
        )
    # Sequences of unequal length (--dynamic) end in positions without a target.
    fewer = ids.clone()
    fewer[:, ids.shape[1] // 2 :] = IGNORED
    value = _loss(subject, ids, fewer)
    if not math.isfinite(value) or abs(value - uniform) > _FAR_FROM_UNIFORM:
        raise CheckError(
            f"with labels of {IGNORED} in the second half the loss is {value:.3f}, not about "
            f"{uniform:.2f}: such positions have no target, and the loss is the mean over all "
            "others (--dynamic has such labels)"
        )
    return f"loss {value:.4f}"


def _loss(subject: Subject, ids: Tensor, labels: Tensor) -> float:
    loss: object = subject.processed.model(ids, labels=labels)
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        shape = list(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise CheckError(f"model(ids, labels=ids) returned {shape}: it must return the scalar loss")
    return loss.float().cpu().item()


def _views(subject: Subject) -> Mapping[str, ParameterView] | None:
    return subject.plugin.parameter_map(subject.processed.model)


def _values(subject: Subject, kind: str = "value") -> dict[str, Tensor | None]:
    """Return canonical name -> value or gradient, by the plugin's map if any, else by name."""
    views = _views(subject)
    parameters = subject.processed.model.named_parameters()
    found = {name: p.grad if kind == "grad" else p.detach() for name, p in parameters}
    if views is None:
        return found
    left_out = {name: found[name] for name in subject.processed.pristine if name in found}
    return left_out | {name: view.read(kind) for name, view in views.items()}  # type: ignore[arg-type]


def parameter_names(subject: Subject) -> str:
    """Compare names and shapes with the model's before post-processing."""
    pristine, found = subject.processed.pristine, _values(subject)
    missing = sorted({*pristine} - {*found})
    strange = sorted({*found} - {*pristine})
    if missing or strange:
        how = "llmb_parameter_map has" if _views(subject) is not None else "the model has"
        hint = "leaves out" if missing else "knows"
        named = ", ".join((missing or strange)[:_NAMED_AT_MOST])
        raise CheckError(
            f"{how} {len(found)} parameters where there were {len(pristine)}: it {hint} {named}; "
            "return a view for each canonical name that the model no longer has, and no other, "
            "from llmb_parameter_map (to compile without renaming, use model.compile())"
        )
    for name, value in found.items():
        if value is None:
            raise CheckError(f"the view of {name} reads no value")
        if value.shape != pristine[name].shape:
            raise CheckError(
                f"{name} has shape {list(value.shape)}, canonically it is "
                f"{list(pristine[name].shape)}"
            )
    return f"{len(found)} parameters"


def parameter_values(subject: Subject) -> str:
    """Compare bit for bit; a wider type can hold the same values."""
    pristine, found = subject.processed.pristine, _values(subject)
    for name, value in found.items():
        if value is None or name not in pristine:
            raise SkipError("parameters are not found under their canonical names")
        if not _equal(value, pristine[name]):
            raise CheckError(
                f"{name} has other values after post-processing than before: weights may be moved, "
                "not changed; a map must read them back unpacked"
            )
    return f"{len(found)} parameters"


def _equal(value: Tensor, pristine: Tensor) -> bool:
    value = value.detach().cpu()
    if torch.finfo(value.dtype).bits < torch.finfo(pristine.dtype).bits:
        return False
    return torch.equal(value.double(), pristine.double())


def parameter_writes(subject: Subject) -> str:
    """Write other values, read the values back, and restore the old values."""
    views = _views(subject)
    if views is None:
        raise SkipError("the plugin has no parameter map, so parameters are written by name")
    backend = subject.device
    for name, view in views.items():
        before = view.read("value")
        if before is None:
            raise SkipError(f"the view of {name} reads no value")
        before = before.detach().clone()
        for value, what in ((before + 1, "what was written to it"), (before, "what was restored")):
            view.write(value)
            backend.step_end()
            backend.synchronize()
            after = view.read("value")
            if after is None or not torch.equal(after.detach().cpu(), value.cpu()):
                raise CheckError(
                    f"the view of {name} does not read back {what}: write() must reach the stored "
                    "parameter, and read() must look at it anew"
                )
    return f"{len(views)} views"


def gradients(subject: Subject) -> str:
    """Run one forward and backward pass, and check every gradient."""
    model, backend = subject.processed.model, subject.device
    ids = subject.batch(1).to(subject.config.device)
    backend.step_begin()
    model(ids, labels=ids).backward()
    backend.step_end()
    backend.synchronize()
    try:
        found = _values(subject, "grad")
        for name, gradient in found.items():
            _check_gradient(subject, name, gradient)
    finally:
        model.zero_grad(set_to_none=True)
    return f"{len(found)} gradients"


def _check_gradient(subject: Subject, name: str, gradient: Tensor | None) -> None:
    if gradient is None:
        raise CheckError(
            f"{name} has no gradient after backward: it must be trained, and its view must "
            'return it for read("grad")'
        )
    shape = subject.processed.pristine.get(name, gradient).shape
    if gradient.shape != shape:
        raise CheckError(
            f"the gradient of {name} has shape {list(gradient.shape)}, not {list(shape)}"
        )
    if not torch.isfinite(gradient.detach().cpu().float()).all():
        raise CheckError(f"the gradient of {name} is not finite")


def optimizer(subject: Subject) -> str:
    """Train a few steps with torch's AdamW and the plugin's optimizer options."""
    seen = subject.trained
    evidence = seen["optimizer"]
    if not seen["moved"]:
        raise CheckError("no parameter has moved after three steps of AdamW")
    if not all(map(math.isfinite, seen["losses"])):
        raise CheckError(f"training three steps gives the losses {seen['losses']}")
    wrong: tuple[tuple[Callable[[], bool], str], ...] = (
        (lambda: not evidence.class_is_torchs, "its class is not torch's AdamW"),
        (lambda: not evidence.step_is_torchs, "its step is not torch's own"),
        (lambda: bool(evidence.instance_overrides), "callables were put on the instance"),
        (lambda: evidence.step_hooks > 0, "hooks were put on its step"),
        (lambda: bool(evidence.missing), "it does not hold every parameter"),
    )
    for is_wrong, what in wrong:
        if is_wrong():
            raise CheckError(f"the harness's optimizer was touched: {what}")
    chosen = subject.plugin.optimizer_options(subject.config)
    kernels = ", ".join(name for name, on in chosen.items() if on) or "torch's choice of kernel"
    return f"{kernels}, losses {', '.join(f'{loss:.4f}' for loss in seen['losses'])}"


def program(subject: Subject) -> str:
    """Check the text that llmb_program returned in the first step."""
    text: object = subject.trained["program"]
    if isinstance(text, Exception):
        raise CheckError(str(text))
    if text is None:
        raise SkipError("the device runs each operation as it is called: there is no program text")
    if not isinstance(text, str) or not text.strip():
        raise CheckError("llmb_program returned an empty text: return None where there is none")
    return f"{text.count(chr(10)) + 1} lines"
