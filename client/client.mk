# The program jobq: built and installed with the extension where libpq's headers
# are; "make client" and "make install-client" for it alone.
CLIENT = client/$(EXTNAME)
CLIENT_SOURCES := $(wildcard $(TOP)/client/*.c)
CLIENT_OBJS = $(CLIENT_SOURCES:$(TOP)/%.c=%.o)
# Debian keeps them apart from the server's.
LIBPQ_HEADERS := $(patsubst %/libpq-fe.h,%,$(firstword $(wildcard $(includedir)/libpq-fe.h /usr/include/postgresql/libpq-fe.h)))
CLIENT_CPPFLAGS = -D_GNU_SOURCE -DJOBQ_VERSION='"$(EXTVERSION)"' -I$(TOP)/src -I$(LIBPQ_HEADERS)

CLIENT_LIBS = -lpq -lm

# Without libcurl and OpenSSL "jobq work" has no --http.
ifneq ($(and $(wildcard /usr/include/curl/curl.h /usr/include/*/curl/curl.h),$(wildcard /usr/include/openssl/hmac.h)),)
CLIENT_CPPFLAGS += -DHAVE_LIBCURL
CLIENT_LIBS += -lcurl -lcrypto
endif

# Without ncurses there is no "jobq top".
ifneq ($(wildcard /usr/include/ncursesw/curses.h),)
CLIENT_CPPFLAGS += -DHAVE_NCURSES
CLIENT_LIBS += -lncursesw -ltinfo
endif

# Without libmicrohttpd and jansson there is no "jobq web".
WEB_SOURCES = $(addprefix $(TOP)/client/,loop.c backend.c pool.c listener.c answer.c session.c tokens.c statement.c stream.c given.c gate.c gateway.c routes.c caller.c request.c)
ifneq ($(and $(wildcard /usr/include/microhttpd.h),$(wildcard /usr/include/jansson.h)),)
CLIENT_CPPFLAGS += -DHAVE_MICROHTTPD
CLIENT_LIBS += -lmicrohttpd -ljansson -lpthread
CLIENT_ASSETS = client/assets.o
else
CLIENT_SOURCES := $(filter-out $(WEB_SOURCES),$(CLIENT_SOURCES))
endif

# The console and the description of its routes are part of the program.
WEB_FILES := $(TOP)/client/openapi.json $(wildcard $(TOP)/client/web/*.*)
client/assets.inc: $(WEB_FILES) $(TOP)/client/embed
	@mkdir -p client
	$(TOP)/client/embed $(WEB_FILES) > $@.tmp && mv $@.tmp $@
client/assets.o: client/assets.inc $(TOP)/client/web.h
	$(CC) $(CFLAGS) $(CLIENT_CPPFLAGS) -I$(TOP)/client $(COPT) -x c -c $< -o $@

.PHONY: client install-client uninstall-client
client: $(CLIENT)

$(CLIENT): $(CLIENT_OBJS) $(CLIENT_ASSETS)
	$(CC) $(CFLAGS) $(CLIENT_OBJS) $(CLIENT_ASSETS) $(LDFLAGS) -L$(libdir) -Wl,-rpath,'$(libdir)' $(CLIENT_LIBS) -o $@

$(CLIENT_OBJS): client/%.o: $(TOP)/client/%.c $(wildcard $(TOP)/client/*.h) $(LISTS)
	@mkdir -p client
	$(CC) $(CFLAGS) $(CLIENT_CPPFLAGS) $(COPT) -c $< -o $@

install-client: $(CLIENT)
	$(MKDIR_P) '$(DESTDIR)$(bindir)' '$(DESTDIR)$(mandir)/man1' '$(DESTDIR)$(manualdir)'
	$(INSTALL_PROGRAM) $(CLIENT) '$(DESTDIR)$(bindir)/$(EXTNAME)'
	$(INSTALL_DATA) $(TOP)/client/jobq.1 '$(DESTDIR)$(mandir)/man1/$(EXTNAME).1'
	$(INSTALL_DATA) $(TOP)/client/completion.bash '$(DESTDIR)$(manualdir)/'
uninstall-client:
	rm -f '$(DESTDIR)$(bindir)/$(EXTNAME)' '$(DESTDIR)$(mandir)/man1/$(EXTNAME).1' \
		'$(DESTDIR)$(manualdir)/completion.bash'

clean: clean-client
.PHONY: clean-client
clean-client:
	rm -f $(CLIENT) $(CLIENT_OBJS) client/assets.inc client/assets.o

ifneq ($(wildcard $(LIBPQ_HEADERS)/internal/pqexpbuffer.h),)
all: client
install: install-client
uninstall: uninstall-client
endif
