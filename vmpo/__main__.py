import sys

from vmpo.cli import main

sys.exit(main())
