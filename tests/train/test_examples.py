"""The docstring examples of the public names."""

import doctest

import pytest

import offleash.train


@pytest.mark.parametrize("name", offleash.train.__all__)
def test_the_example_of_a_public_name_runs_in_an_empty_folder(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", "")  # restored afterwards: train() sets it
    found = doctest.DocTestFinder(recurse=False).find(getattr(offleash.train, name), name, globs={})
    assert sum(len(test.examples) for test in found) > 0
    for test in found:
        assert doctest.DocTestRunner().run(test).failed == 0
