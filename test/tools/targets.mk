# Targets that need no PostgreSQL in the PATH: the scripts bring their own.

.PHONY: bench chaos check check-core check-ha check-long check-packages console demo dist example fuzz indent indent-check model print-script print-version reference try

# "make bench WORKLOAD=drain QUICK=1"; FULL=1 for long runs.
bench:
	@test/bench/bench $(if $(QUICK),--quick) $(if $(FULL),--full) $(WORKLOAD)

# "make chaos SEED=1 ROUNDS=20"; FIRST, ONLY, EXCEPT and MINUTES as test/chaos/chaos says.
chaos:
	@test/tools/with-server --major $(or $(MAJOR),18) -- test/chaos/chaos $(if $(SEED),--seed $(SEED)) \
		$(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(FIRST),--first $(FIRST)) $(if $(MINUTES),--minutes $(MINUTES)) \
		$(if $(ONLY),--only '$(ONLY)') $(if $(EXCEPT),--except '$(EXCEPT)')

# "make check QUICK=1" leaves out what test/tools/check says there.
check:
	@test/tools/check $(if $(QUICK),--quick)

# PostgreSQL's own tests, on a server where jobq is busy.
check-core:
	@test/tools/check-core

# Three nodes with Patroni lose their primary again and again; see test/ha/ha.
check-ha:
	@test/tools/check-ha $(if $(MAJOR),--major $(MAJOR)) $(if $(SEED),--seed $(SEED))

# With sanitizers and valgrind, for hours: see test/tools/check-long.
check-long:
	@test/tools/check-long

# The packages of Debian, in a separate Debian: see test/tools/check-packages.
check-packages:
	@test/tools/check-packages

# The console in the browser, on a private server with a lively load, until Ctrl-C.
console:
	@test/demo/run console

demo:
	@test/demo/run

# What git has of the last commit, as PGXN wants it.  An archive has local times, so
# the same commit makes the same archive in UTC only.
dist:
	mkdir -p dist
	TZ=UTC git archive --format zip --prefix=$(EXTNAME)-$(EXTVERSION)/ -o dist/$(EXTNAME)-$(EXTVERSION).zip HEAD

# "make example APP=invoicing": an application of examples/, on a private server.
example:
	@test -x 'examples/$(APP)/run' || { echo 'make example APP=...: invoicing, outbox or imports'; exit 1; }
	@test/tools/with-server --set 'max_worker_processes = 16' -- \
		sh -c 'psql -qc "CREATE EXTENSION jobq" && exec examples/$(APP)/run'

# "make fuzz SEED=1 SECONDS=60"; SANITIZE=1 for the server with sanitizers.
fuzz:
	@test/tools/with-server --major 18 $(if $(SANITIZE),--sanitize) --conf test/fuzz/fuzz.conf -- \
		test/fuzz/fuzz $(if $(SEED),--seed $(SEED)) $(if $(SECONDS),--seconds $(SECONDS))

indent:
	@test/tools/pgindent

indent-check:
	@test/tools/pgindent --check

# "make model SEED=1 SECONDS=60"; FAULTS=1 plants faults, which it must find.
model:
	@test/model/model $(if $(SEED),--seed $(SEED)) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(FAULTS),--faults)

print-version:
	@echo $(EXTVERSION)

# The install script, for control/released.
print-script:
	@awk -f $(TOP)/control/join.awk $(LISTS) $(EXTENSION_PARTS)

try:
	@test/demo/run try

# Fill in what the server knows in doc/reference*.md, and what the program says of its
# commands in its manual page.
reference:
	@test/tools/reference
	@test/tools/with-server -- sh -c 'client/page "$${PG_CONFIG%/*}/jobq" -' >client/jobq.1.new
	@mv client/jobq.1.new client/jobq.1
