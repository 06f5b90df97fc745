# jobq: a transactional job queue whose workers run in the server

EXTNAME = jobq
TOP := $(patsubst %/,%,$(dir $(firstword $(MAKEFILE_LIST))))
# The control file is the single source of the version.
EXTVERSION = $(shell sed -n "s/^default_version *= *'\(.*\)'/\1/p" $(TOP)/control/$(EXTNAME).control)

# Rooms are folders below src/ and worker/; every C file in one is built.  (PGXS
# installs what is in HEADERS; these are for jobq alone.)
SOURCES := $(wildcard $(TOP)/src/*/*.c $(TOP)/worker/*/*.c)
ROOM_HEADERS := $(wildcard $(TOP)/src/*/*.h $(TOP)/worker/*/*.h)

MODULE_big = $(EXTNAME)
OBJS = $(SOURCES:$(TOP)/%.c=%.o)
PGFILEDESC = "jobq - a transactional job queue"

# PGXS only ever expands $(addsuffix .control, $(EXTENSION)), so a path works.
EXTENSION = control/$(EXTNAME)
EXTENSION_PARTS = $(sort $(wildcard $(TOP)/control/parts/*.sql))
EXTENSION_SCRIPT = control/$(EXTNAME)--$(EXTVERSION).sql
# Lists that C and SQL have in common.
LISTS = $(TOP)/src/produce/options.h $(TOP)/src/store/queue_settings.h \
	$(TOP)/src/operate/filters.h
DATA_built = $(EXTENSION_SCRIPT)
DATA = $(wildcard $(TOP)/control/$(EXTNAME)--*--*.sql)

PG_CPPFLAGS = -I$(srcdir)/src -I$(srcdir)/worker

REGRESS = setup produce_enqueue produce_bulk commit_transactions attempt_handlers \
	attempt_retry attempt_expiry attempt_events attempt_within ready_order operate_waiting operate_jobs operate_queues operate_views \
	runner_session ready_limits ready_limiters ready_limit_keys ready_limit_taken ready_groups ready_group_moves ready_group_scope ready_group_patience runner_work_limits ready_fairness ready_tenants \
	module_privileges consume_reserve store_unique produce_notify \
	compose_batches module_bad_input module_trust schedule_schedule schedule_rrule schedule_clock compose_ends compose_workflows compose_map compose_conditions compose_grow compose_add compose_rerun compose_nest \
	attempt_context attempt_trace operate_tenants operate_pause attempt_history operate_explain operate_leaver runner_run_as runner_allowance runner_sets runner_sets_jobs runner_sets_groups runner_sql runner_errand runner_testing runner_memory operate_events operate_many operate_audit operate_failures operate_edit store_full consume_reserve_job consume_lost consume_outdated store_unique_scope store_unique_max store_unique_merge store_uuid ready_limit_cost operate_stats operate_deploy durable_steps durable_waits durable_ask durable_any durable_links module_names module_comments cleanup
REGRESS_OPTS = --encoding=UTF8 --temp-config=$(srcdir)/test/jobq.conf

ISOLATION = setup operate_cancel operate_retry operate_many operate_waiting commit_late store_new_queue runner_work \
	runner_work_limits ready_limits ready_groups store_max_length store_handler_ddl \
	runner_sets operate_pause consume_reserve operate_queues operate_settings store_unique store_order store_serializable store_uuid compose_batches compose_kept compose_rerun compose_add compose_nest durable_signals durable_links
ISOLATION_OPTS = --inputdir=$(srcdir)/test/isolation --temp-config=$(srcdir)/test/jobq.conf

# "make installcheck RUNNING=1" uses the server PGHOST/PGPORT point at instead.
ifndef RUNNING
REGRESS_OPTS += --temp-instance=./tmp_check
ISOLATION_OPTS += --temp-instance=./tmp_check_iso
endif

TAP_TESTS = 1
PROVE_TESTS ?= test/t/*.pl

EXTRA_CLEAN = dist

# The targets there bring their own PostgreSQL, or need none; everything else needs one.
ifneq ($(filter $(shell sed -n 's/^\.PHONY: //p' $(TOP)/test/tools/targets.mk),$(MAKECMDGOALS)),)
include $(TOP)/test/tools/targets.mk
else
PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs 2>/dev/null)
ifeq ($(PGXS),)
$(error there is no program "$(PG_CONFIG)", which tells where PostgreSQL is: \
install the server's development files, for example the package postgresql-server-dev-15, \
or say make PG_CONFIG=/path/to/pg_config; make demo and make check need neither)
endif
ifeq ($(wildcard $(PGXS)),)
$(error "$(PG_CONFIG)" belongs to a PostgreSQL without the server's development files: \
there is no $(PGXS). Install them, for example the package postgresql-server-dev-15, \
or say make PG_CONFIG=/path/to/pg_config)
endif
# A build uses all processors unless -j is given.  Several goals, as in "make clean all", are made
# one after another.
ifeq ($(filter -j%,$(MAKEFLAGS))$(word 2,$(MAKECMDGOALS)),)
MAKEFLAGS += -j$(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
endif

include $(PGXS)

# VPATH builds: PGXS does not create the folders that objects go to, and a
# rule cannot (make finds "src" in the source tree and thinks it is done).
ifdef VPATH
$(shell mkdir -p control $(sort $(dir $(OBJS))))
endif

$(EXTENSION_SCRIPT): $(TOP)/control/join.awk $(LISTS) $(EXTENSION_PARTS)
	awk -f $^ > $@.tmp && mv $@.tmp $@

# The manual is installed as it stands in the tree.  PGXS's DOCS would put all of
# it into one folder that extensions share, where its links lead nowhere.
PAGES = $(wildcard $(TOP)/doc/*.md $(TOP)/doc/*.png $(TOP)/doc/*.svg)
manualdir = $(docdir)/$(EXTNAME)
.PHONY: install-manual uninstall-manual
ifneq ($(with_manual),no)
install: install-manual
uninstall: uninstall-manual
endif
install-manual:
	$(MKDIR_P) '$(DESTDIR)$(manualdir)/doc'
	$(INSTALL_DATA) $(TOP)/README.md $(TOP)/LICENSE '$(DESTDIR)$(manualdir)/'
	$(INSTALL_DATA) $(PAGES) '$(DESTDIR)$(manualdir)/doc/'
uninstall-manual:
	cd '$(DESTDIR)$(manualdir)' 2>/dev/null && rm -f README.md LICENSE doc/*.md doc/*.png doc/*.svg || true
	-rmdir '$(DESTDIR)$(manualdir)/doc' '$(DESTDIR)$(manualdir)' 2>/dev/null

# Bitcode takes half of the time of a build.
ifeq ($(with_llvm)$(MAKELEVEL)$(findstring s,$(firstword -$(MAKEFLAGS))),yes0)
ifneq ($(filter all,$(or $(MAKECMDGOALS),all)),)
$(info bitcode for JIT is built, too; with_llvm=no leaves it out)
endif
endif

# PGXS leaves installed bitcode if the removal runs with with_llvm=no.
.PHONY: uninstall-bitcode
uninstall: uninstall-bitcode
uninstall-bitcode:
	$(if $(bitcodedir),rm -rf '$(DESTDIR)$(bitcodedir)/$(EXTNAME)' '$(DESTDIR)$(bitcodedir)/$(EXTNAME).index.bc')

include $(TOP)/client/client.mk
include $(TOP)/libraries/c/library.mk

# PGXS has no header dependency tracking unless the server was configured with
# --enable-depend; without this a changed header leaves stale objects behind.
$(OBJS) $(OBJS:.o=.bc): $(ROOM_HEADERS)

ifeq ($(shell test $(VERSION_NUM) -lt 150000 && echo yes),yes)
$(error $(EXTNAME) needs PostgreSQL 15 or later; "$(PG_CONFIG)" is of $(VERSION))
endif
endif
