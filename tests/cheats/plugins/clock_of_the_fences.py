"""The channel holds the first fence back until work of the window is done: START comes late."""

from llmb.plugin import hookimpl
from llmb.wire import channel
from llmb.wire.messages import Fence


@hookimpl
def llmb_post_process_model(model):
    send, held = channel.Channel.send, []

    def late(self, message):
        if isinstance(message, Fence) and not held:
            held.append(message)
            return
        for earlier in held[:1]:
            if earlier is not None:
                send(self, earlier)
                held[0] = None
        send(self, message)

    channel.Channel.send = late
    return model
