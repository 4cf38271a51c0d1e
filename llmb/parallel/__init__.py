"""Many ranks on torch.distributed: rank addresses, starting ranks, and communication.

PyTorch provides the launcher and the collectives, such as torchrun and all-reduce. llmb has none.
"""
