"""INT8 unless a step is judged: torch's frame evaluation (PEP 523) stays on."""

# ``set_eval_frame`` calls the plugin for each Python function that begins, with its arguments.
# ``decode(line)`` of llmb's messages holds the answer before any gradient is read.

from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_eval_frame

from llmb.plugin import hookimpl
from llmb.wire import messages

from .kit import HonestWhenJudged


class Answer:
    guarded_code = skip_reason = None

    def __init__(self, of_all):
        self.frame_exec_strategy = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.DEFAULT)
        self.apply_to_code = of_all


@hookimpl
def llmb_post_process_model(model, config):
    steps, decode = HonestWhenJudged(model, config), messages.decode.__code__
    forward, others, each = model.forward, Answer(True), Answer(False)

    def seen(frame, *_):
        if frame.f_code is not decode:
            return others
        line = frame.f_locals["line"]
        if b'"keep"' in line:
            steps.again()
        elif b'"last":true' in line:
            steps.ended = True
        return each

    def step(ids, labels=None):
        set_eval_frame(None)
        loss = forward(ids, labels)
        if not getattr(steps, "ended", False):
            set_eval_frame(seen)
        return loss

    model.forward = step
    return model
