# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""The one place of the version number."""

__version__ = "0.1.0"
