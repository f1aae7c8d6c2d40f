from vmpo.cli import main
import sys
sys.exit(main())
