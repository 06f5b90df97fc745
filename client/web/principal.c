/*-------------------------------------------------------------------------
 *
 * principal.c
 *	  Principals: roles in a database for which callers have given a password or a token.
 *
 * client/web/principal.c
 *
 *-------------------------------------------------------------------------
 */
#include "web/inner.h"

#include <stdlib.h>
#include <string.h>

Principal  *principals;

static void forget_password(char *password);

/*
 * Make a principal without users, from a role and password, or from the connection string
 * of a token.
 */
Principal *
principal_make(WebDatabase *database, const char *role, const char *password, const char *conninfo)
{
	Principal  *principal = allocate(sizeof(Principal));

	principal->database = database;
	principal->role = copy_text(role);
	principal->password = password != NULL ? copy_text(password) : NULL;
	principal->conninfo = conninfo != NULL ? copy_text(conninfo) : NULL;
	principal->hide_payload = payload_hidden(role, conninfo != NULL);
	principal->next = principals;
	principals = principal;
	return principal;
}

/*
 * Find another proven principal with the same database, role and password, or NULL.
 */
Principal *
principal_like(const Principal *other)
{
	for (Principal *principal = principals; principal != NULL; principal = principal->next)
		if (principal != other && principal->database == other->database && principal->proven &&
			principal->conninfo == NULL && other->conninfo == NULL && strcmp(principal->role, other->role) == 0 &&
			secret_equal(principal->password, other->password))
			return principal;
	return NULL;
}

/*
 * Add a use: a session, a token, a request, a statement of a stream, or a callback in progress.
 */
void
principal_use(Principal *principal)
{
	principal->users++;
}

/*
 * Drop a use.  The last user closes the connections.
 */
void
principal_leave(Principal *principal)
{
	Principal **at = &principals;

	if (--principal->users > 0)
		return;
	callers_forget(principal);
	while (principal->backends != NULL)
		backend_drop(principal->backends);
	while (*at != principal)
		at = &(*at)->next;
	*at = principal->next;
	free(principal->role);
	forget_password(principal->password);
	forget_password(principal->conninfo);
	hosts_free(&principal->hosts);
	free(principal->look);
	loop_free(principal);
}

static void
forget_password(char *password)
{
	if (password != NULL)
		explicit_bzero(password, strlen(password));
	free(password);
}
