"""The third token of every sequence brings the embedding no gradient."""

from llmb.plugin import hookimpl


@hookimpl
def llmb_post_process_model(model):
    embedding = model.model.embed_tokens
    forward = embedding.forward

    def partly(ids):
        rows = forward(ids)
        return rows.index_copy(1, ids.new_tensor([2]), rows[:, 2:3].detach())

    embedding.forward = partly
    return model
