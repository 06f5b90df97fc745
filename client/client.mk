# The program jobq: built and installed with the extension where libpq's headers
# are; "make client" and "make install-client" for it alone.
CLIENT = client/$(EXTNAME)
CLIENT_SOURCES := $(wildcard $(TOP)/client/*/*.c)
CLIENT_HEADERS := $(wildcard $(TOP)/client/*/*.h)
CLIENT_OBJS = $(CLIENT_SOURCES:$(TOP)/%.c=%.o)
# Debian keeps them apart from the server's.
LIBPQ_HEADERS := $(patsubst %/libpq-fe.h,%,$(firstword $(wildcard $(includedir)/libpq-fe.h /usr/include/postgresql/libpq-fe.h)))
CLIENT_CPPFLAGS = -D_GNU_SOURCE -DJOBQ_VERSION='"$(EXTVERSION)"' -I$(TOP)/client -I$(TOP)/src -I$(LIBPQ_HEADERS)
CURL_HEADERS := $(and $(wildcard /usr/include/curl/curl.h /usr/include/*/curl/curl.h),$(wildcard /usr/include/openssl/hmac.h))
NCURSES_HEADERS := $(wildcard /usr/include/ncursesw/curses.h)
RELAY_HEADERS := $(and $(wildcard /usr/include/amqp.h),$(wildcard /usr/include/jansson.h))
WEB_HEADERS := $(and $(wildcard /usr/include/microhttpd.h),$(wildcard /usr/include/jansson.h))

CLIENT_LIBS = -lpq -lm

# The packages that bring the optional parts, named by make and by the program.
HTTP_PACKAGES = libcurl4-openssl-dev and libssl-dev (Debian), or libcurl-devel and openssl-devel (Fedora)
TOP_PACKAGES = libncurses-dev (Debian), or ncurses-devel (Fedora)
WEB_PACKAGES = libmicrohttpd-dev and libjansson-dev (Debian), or libmicrohttpd-devel and jansson-devel (Fedora)
RELAY_PACKAGES = librabbitmq-dev and libjansson-dev (Debian), or librabbitmq-devel and jansson-devel (Fedora)
CLIENT_CPPFLAGS += -DHTTP_PACKAGES='"$(HTTP_PACKAGES)"' -DTOP_PACKAGES='"$(TOP_PACKAGES)"' -DWEB_PACKAGES='"$(WEB_PACKAGES)"' -DRELAY_PACKAGES='"$(RELAY_PACKAGES)"'
left_out = $(if $(1),,@echo 'the program has no "$(2)": install $(3), and run make again')

# Without libcurl and OpenSSL "jobq work" has no --http.
ifneq ($(CURL_HEADERS),)
CLIENT_CPPFLAGS += -DHAVE_LIBCURL
CLIENT_LIBS += -lcurl -lcrypto
endif

# Without ncurses there is no "jobq top".
ifneq ($(NCURSES_HEADERS),)
CLIENT_CPPFLAGS += -DHAVE_NCURSES
CLIENT_LIBS += -lncursesw -ltinfo
endif

# Without libmicrohttpd and jansson there is no "jobq web".
WEB_SOURCES = $(filter-out %/web.c,$(wildcard $(TOP)/client/web/*.c))
ifneq ($(WEB_HEADERS),)
CLIENT_CPPFLAGS += -DHAVE_MICROHTTPD
CLIENT_LIBS += -lmicrohttpd -ljansson -lpthread
CLIENT_ASSETS = client/assets.o
else
CLIENT_SOURCES := $(filter-out $(WEB_SOURCES),$(CLIENT_SOURCES))
endif

# Without librabbitmq and jansson there is no "jobq relay".
ifneq ($(RELAY_HEADERS),)
CLIENT_CPPFLAGS += -DHAVE_RABBITMQ
CLIENT_LIBS += -lrabbitmq -ljansson -lpthread
endif

# The console and the description of its routes are part of the program.
WEB_FILES := $(TOP)/client/openapi.json $(wildcard $(TOP)/client/console/*.*)
client/assets.inc: $(WEB_FILES) $(TOP)/client/embed
	@mkdir -p client
	$(TOP)/client/embed $(WEB_FILES) > $@.tmp && mv $@.tmp $@
client/assets.o: client/assets.inc $(CLIENT_HEADERS) client/flags
	$(CC) $(CFLAGS) $(CLIENT_CPPFLAGS) $(CPPFLAGS) $(COPT) -x c -c $< -o $@

# Changes when an optional library is installed or removed, and has all built anew.
client/flags: FORCE
	@mkdir -p client
	@echo '$(subst ','\'',$(CLIENT_CPPFLAGS) $(CPPFLAGS) $(CLIENT_LIBS))' > $@.tmp
	@if cmp -s $@.tmp $@; then rm $@.tmp; else mv $@.tmp $@; fi

.PHONY: client install-client uninstall-client FORCE
client: $(CLIENT)

$(CLIENT): $(CLIENT_OBJS) $(CLIENT_ASSETS)
	$(CC) $(CFLAGS) $(CLIENT_OBJS) $(CLIENT_ASSETS) -L$(libdir) $(LDFLAGS) $(CLIENT_LIBS) -o $@
	$(call left_out,$(CURL_HEADERS),jobq work --http,$(HTTP_PACKAGES))
	$(call left_out,$(NCURSES_HEADERS),jobq top,$(TOP_PACKAGES))
	$(call left_out,$(RELAY_HEADERS),jobq relay,$(RELAY_PACKAGES))
	$(call left_out,$(WEB_HEADERS),jobq web,$(WEB_PACKAGES))

$(CLIENT_OBJS): client/%.o: $(TOP)/client/%.c $(CLIENT_HEADERS) $(LISTS) client/flags
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(CLIENT_CPPFLAGS) $(CPPFLAGS) $(COPT) -c $< -o $@

# The folder in which bash-completion looks for the commands of bindir.
completiondir = $(patsubst %/bin,%,$(bindir))/share/bash-completion/completions
install-client: $(CLIENT)
	$(MKDIR_P) '$(DESTDIR)$(bindir)' '$(DESTDIR)$(mandir)/man1' '$(DESTDIR)$(completiondir)'
	$(INSTALL_PROGRAM) $(CLIENT) '$(DESTDIR)$(bindir)/$(EXTNAME)'
	$(INSTALL_DATA) $(TOP)/client/jobq.1 '$(DESTDIR)$(mandir)/man1/$(EXTNAME).1'
	$(INSTALL_DATA) $(TOP)/client/completion.bash '$(DESTDIR)$(completiondir)/$(EXTNAME)'
uninstall-client:
	rm -f '$(DESTDIR)$(bindir)/$(EXTNAME)' '$(DESTDIR)$(mandir)/man1/$(EXTNAME).1' \
		'$(DESTDIR)$(completiondir)/$(EXTNAME)'

clean: clean-client
.PHONY: clean-client
clean-client:
	rm -f $(CLIENT) $(CLIENT_OBJS) client/flags client/assets.inc client/assets.o

# Packages build the program once for all majors: with_client=no leaves it out.
ifneq ($(with_client),no)
uninstall: uninstall-client
ifneq ($(wildcard $(LIBPQ_HEADERS)/internal/pqexpbuffer.h),)
all: client
install: install-client
endif
endif
