# Targets that need no PostgreSQL in the PATH: the scripts bring their own.

.PHONY: bench check demo indent indent-check reference

# "make bench WORKLOAD=drain QUICK=1"; FULL=1 for long runs.
bench:
	@test/bench/bench $(if $(QUICK),--quick) $(if $(FULL),--full) $(WORKLOAD)

check:
	@test/tools/check

demo:
	@test/demo/run

indent:
	@test/tools/pgindent

indent-check:
	@test/tools/pgindent --check

# Fill in what the server knows in doc/reference*.md.
reference:
	@test/tools/reference
