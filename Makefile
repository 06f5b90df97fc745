# jobq: a transactional job queue whose workers run in the server

EXTNAME = jobq
# The control file is the single source of the version.
EXTVERSION = $(shell sed -n "s/^default_version *= *'\(.*\)'/\1/p" control/$(EXTNAME).control)

MODULE_big = $(EXTNAME)
OBJS = \
	src/ack.o \
	src/await.o \
	src/backoff.o \
	src/batch.o \
	src/batch_commit.o \
	src/block.o \
	src/call.o \
	src/catalog.o \
	src/claim.o \
	src/client.o \
	src/clock.o \
	src/commit.o \
	src/consume.o \
	src/cron.o \
	src/drain.o \
	src/enqueue.o \
	src/finish.o \
	src/flow.o \
	src/flush.o \
	src/group.o \
	src/hand.o \
	src/handler.o \
	src/init.o \
	src/insert.o \
	src/kinds.o \
	src/lanes.o \
	src/lease.o \
	src/lease_commit.o \
	src/length.o \
	src/limit.o \
	src/limit_text.o \
	src/log.o \
	src/message.o \
	src/move.o \
	src/notify.o \
	src/offer.o \
	src/operate.o \
	src/park.o \
	src/queue_ops.o \
	src/ready.o \
	src/result_ref.o \
	src/row.o \
	src/schedule.o \
	src/settings.o \
	src/shared.o \
	src/spec.o \
	src/spi.o \
	src/status.o \
	src/steps.o \
	src/tick.o \
	src/unique.o \
	src/utility.o \
	src/views.o \
	src/wait.o \
	src/workflow.o \
	worker/batch_look.o \
	worker/batches.o \
	worker/flight.o \
	worker/groups.o \
	worker/launcher.o \
	worker/leases.o \
	worker/limits.o \
	worker/procedure.o \
	worker/process.o \
	worker/rank.o \
	worker/relay.o \
	worker/retention.o \
	worker/run.o \
	worker/scan.o \
	worker/scheduler.o \
	worker/schedules.o \
	worker/session.o \
	worker/spawn.o \
	worker/supervise.o \
	worker/worker.o \
	worker/workflows.o
PGFILEDESC = "jobq - a transactional job queue"

# PGXS only ever expands $(addsuffix .control, $(EXTENSION)), so a path works.
EXTENSION = control/$(EXTNAME)
EXTENSION_PARTS = \
	control/parts/00-head.sql \
	control/parts/10-tables.sql \
	control/parts/20-types.sql \
	control/parts/30-functions.sql \
	control/parts/35-schedules.sql \
	control/parts/36-batches.sql \
	control/parts/37-workflows.sql \
	control/parts/40-views.sql \
	control/parts/50-privileges.sql
EXTENSION_SCRIPT = control/$(EXTNAME)--$(EXTVERSION).sql
DATA_built = $(EXTENSION_SCRIPT)

PG_CPPFLAGS = -I$(srcdir)/src -I$(srcdir)/worker

REGRESS = setup enqueue bulk transactions handlers retry order waiting operate queues \
	session limits groups work_limits fairness privileges consume unique notify batches bad_input schedule workflows comments cleanup
REGRESS_OPTS = --encoding=UTF8 --temp-config=$(srcdir)/test/jobq.conf

ISOLATION = setup cancel retry late_commit new_queue work work_limits limits max_length handler_ddl pause consume queue_ops unique batches
ISOLATION_OPTS = --inputdir=$(srcdir)/test/isolation --temp-config=$(srcdir)/test/jobq.conf

# "make installcheck RUNNING=1" uses the server PGHOST/PGPORT point at instead.
ifndef RUNNING
REGRESS_OPTS += --temp-instance=./tmp_check
ISOLATION_OPTS += --temp-instance=./tmp_check_iso
endif

TAP_TESTS = 1
PROVE_TESTS ?= test/t/*.pl

EXTRA_CLEAN = dist

# These bring their own PostgreSQL; everything else needs one.
ifneq ($(filter check indent indent-check demo bench,$(MAKECMDGOALS)),)
include test/tools/targets.mk
else
PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)

# VPATH builds: PGXS does not create the folders that objects go to, and a
# rule cannot (make finds "src" in the source tree and thinks it is done).
ifdef VPATH
$(shell mkdir -p src worker control)
endif

$(EXTENSION_SCRIPT): $(EXTENSION_PARTS)
	cat $^ > $@

# PGXS has no header dependency tracking unless the server was configured with
# --enable-depend; without this a changed header leaves stale objects behind.
$(OBJS) $(OBJS:.o=.bc): $(wildcard $(srcdir)/src/*.h $(srcdir)/worker/*.h)

ifeq ($(shell test $(VERSION_NUM) -lt 150000 && echo yes),yes)
$(error $(EXTNAME) requires PostgreSQL 15 or later)
endif

.PHONY: dist print-version
print-version:
	@echo $(EXTVERSION)
dist:
	mkdir -p dist
	git archive --format zip --prefix=$(EXTNAME)-$(EXTVERSION)/ -o dist/$(EXTNAME)-$(EXTVERSION).zip HEAD
endif
