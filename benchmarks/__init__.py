# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""What composite attention costs beside plain attention and beside its peers: `make bench`."""
