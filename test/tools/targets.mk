# Targets that need no PostgreSQL in the PATH: the scripts bring their own.

.PHONY: check indent indent-check

check:
	@test/tools/check

indent:
	@test/tools/pgindent

indent-check:
	@test/tools/pgindent --check
