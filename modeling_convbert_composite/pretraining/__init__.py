# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""Pre-training: text, tokenizers, examples, masks and the run. Needs the extra `train`."""
