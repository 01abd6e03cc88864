import sys

from polydice.cli import main

sys.exit(main())
