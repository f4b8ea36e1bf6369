"""`python -m multiverse.cli`, for when the `multiverse` script is not on the path."""

import sys

from multiverse.cli.main import main

sys.exit(main())
