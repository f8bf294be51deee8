"""The environments of `make test-matrix` keep every pin that does not contradict what is tested."""

from tests.matrix import loosened, oldest, ours, pinned


def test_a_pin_goes_if_it_is_of_a_tested_package_or_contradicts_what_one_needs() -> None:
    pins = ["trl==1.16.0", "huggingface-hub==0.34.0", "tokenizers==0.22.0", "numpy==2.3.0", "six==1.17.0"]
    needs = ["huggingface_hub>=1.0", "numpy>=2", 'tokenizers<0.22; sys_platform == "none"', "six<1; extra == 'old'"]
    assert loosened(pins, ["trl==1.15.0"], needs) == ["tokenizers==0.22.0", "numpy==2.3.0", "six==1.17.0"]
    assert loosened(pinned(), ["trl==1.16.0"], []) == [pin for pin in pinned() if not pin.startswith("trl==")]


def test_the_ends_of_a_range_are_those_of_pyproject() -> None:
    assert ours("trl").startswith(f"trl>={oldest('trl').removesuffix('.0')}")
    assert oldest("transformers").count(".") == 2
