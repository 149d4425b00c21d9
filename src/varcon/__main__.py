import sys

from varcon.cli import main

sys.exit(main())
