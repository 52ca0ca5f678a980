# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""Fine-tuning: tasks, their data, their metrics, the run, and the GLUE protocol. Needs the extra `train`."""
