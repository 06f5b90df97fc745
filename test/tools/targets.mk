# Targets that need no PostgreSQL in the PATH: the scripts bring their own.

.PHONY: check demo indent indent-check

check:
	@test/tools/check

demo:
	@test/demo/run

indent:
	@test/tools/pgindent

indent-check:
	@test/tools/pgindent --check
