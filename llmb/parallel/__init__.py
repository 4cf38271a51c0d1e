"""Many ranks on torch.distributed: where this process stands, how ranks start, and how they talk.

What launches and what communicates is PyTorch's: llmb has no launcher or collective of its own.
"""
