# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""`python -m modeling_convbert_composite` is the command `convbert-composite`."""

from modeling_convbert_composite.cli import main


if __name__ == "__main__":
    main()
