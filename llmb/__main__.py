"""``python -m llmb`` is ``llmb``."""

from llmb.cli import main

if __name__ == "__main__":
    main()
