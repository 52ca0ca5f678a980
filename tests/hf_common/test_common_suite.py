# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""
The library's own common test suite (about 160 checks that every model in it passes) on our classes.

The suite is not installed, but stands in the source archive of the same version on PyPI, from where it is fetched into
a cache folder (`CONVBERT_COMPOSITE_CACHE`, default `.cache` in the repository). It runs in a process of its own, as it
changes tables of the library.
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
import transformers
from helpers import OPTIONS


pytestmark = [pytest.mark.slow, pytest.mark.ci]

HERE = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("CONVBERT_COMPOSITE_CACHE") or HERE.parents[1] / ".cache")
VERSION = transformers.__version__
PACKAGE = "common_tests"

# What the suite imports from sub-folders that the archive lacks.
STUBS = {
    "exporters/test_export.py": "class ExportTesterMixin:\n    pass\n",
    "generation/test_utils.py": "class GenerationTesterMixin:\n    pass\n",
    "utils/test_configuration_utils.py": "config_common_kwargs = {}\n",
}
