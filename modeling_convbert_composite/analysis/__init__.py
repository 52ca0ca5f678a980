# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""Looking into a model: its kernels as tables and plots. Plots need the extra `plot`."""
