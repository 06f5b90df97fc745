# The library for C: a static library, its header, and a file for pkg-config, built and
# installed with the extension where libpq's headers are.
LIBRARY = libraries/c/libjobq.a
LIBRARY_OBJ = libraries/c/jobq_consumer.o

.PHONY: library install-library uninstall-library clean-library
library: $(LIBRARY)

# a program that is linked with the library may be position-independent
$(LIBRARY_OBJ): $(TOP)/libraries/c/jobq_consumer.c $(TOP)/libraries/c/jobq_consumer.h
	@mkdir -p libraries/c
	$(CC) $(CFLAGS) $(CFLAGS_SL) -I$(LIBPQ_HEADERS) $(CPPFLAGS) $(COPT) -c $< -o $@
$(LIBRARY): $(LIBRARY_OBJ)
	rm -f $@
	$(AR) crs $@ $<

install-library: $(LIBRARY)
	$(MKDIR_P) '$(DESTDIR)$(includedir)' '$(DESTDIR)$(libdir)/pkgconfig'
	$(INSTALL_DATA) $(TOP)/libraries/c/jobq_consumer.h '$(DESTDIR)$(includedir)/'
	$(INSTALL_STLIB) $(LIBRARY) '$(DESTDIR)$(libdir)/libjobq.a'
	sed 's|@includedir@|$(includedir)|; s|@libdir@|$(libdir)|; s|@libpq@|$(LIBPQ_HEADERS)|; s|@version@|$(EXTVERSION)|' \
		$(TOP)/libraries/c/jobq.pc.in >'$(DESTDIR)$(libdir)/pkgconfig/jobq.pc'
uninstall: uninstall-library
uninstall-library:
	rm -f '$(DESTDIR)$(includedir)/jobq_consumer.h' '$(DESTDIR)$(libdir)/libjobq.a' \
		'$(DESTDIR)$(libdir)/pkgconfig/jobq.pc'

clean: clean-library
clean-library:
	rm -f $(LIBRARY) $(LIBRARY_OBJ)

# Packages leave the library out: with_library=no.
ifneq ($(if $(filter no,$(with_library)),,$(LIBPQ_HEADERS)),)
all: library
install: install-library
endif
