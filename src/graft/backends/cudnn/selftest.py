"""`python -m graft.backends.cudnn.selftest`: the device suite of `cuda`, by cuDNN's kernels."""

import sys

from graft.backends.cuda.selftest import main
from graft.backends.cudnn.backend import Cudnn

if __name__ == "__main__":
    sys.exit(main(Cudnn))
