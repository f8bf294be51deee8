"""Names of one's own things are found where one works."""

import sys

import pytest

from offleash.eval.errors import ConfigError
from offleash.eval.registry import find


def test_a_module_in_the_working_directory_is_found_and_the_path_stays_as_it_was(tmp_path, monkeypatch):
    (tmp_path / "my_own_module.py").write_text("import sys\n\ndef make(): return 7\n")
    monkeypatch.chdir(tmp_path)
    before = [*sys.path]
    assert find("task", "my_own_module:make", {})() == 7
    assert sys.path == before
    with pytest.raises(ConfigError, match="not_there"):
        find("task", "not_there:make", {})
    assert sys.path == before
