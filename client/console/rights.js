// The rights of the session's role.  The server checks each request; the console only leaves out
// actions that the server would refuse.

import { session } from './api.js';

const includes = { monitor: ['monitor', 'operate', 'manage'], operate: ['operate', 'manage'], manage: ['manage'] };

// Whether the role has this privilege, for all queues or for this queue.  For a single queue, only
// "manage" exists.
export const may = (privilege, queue) => (session.privileges ?? []).some((p) => p.queue === null
	? includes[privilege].includes(p.privilege) : p.queue === queue && p.privilege === 'manage');

// Whether the role has the privileges of another role.  A superuser has all: there is no list.
export const owns = (role) => session.roles === null || (session.roles ?? []).includes(role);

export const changes = () => !session.read_only;
export const mayOperate = (queue) => changes() && may('operate', queue);
export const mayRetry = (job) => changes() && (owns(job.role) || may('operate', job.queue));
export const mayDelete = (job) => changes() && (owns(job.role) || may('manage', job.queue));
export const mayRetryAll = (failure) => changes() && (failure.roles.every(owns) || may('operate', failure.queue));
export const mayDeleteAll = (failure) => changes() && (failure.roles.every(owns) || may('manage', failure.queue));
export const mayPause = (schedule) => changes() && (owns(schedule.role) || may('operate'));
export const mayRun = (schedule) => changes() && owns(schedule.role);

// The text for an empty list: no rows exist, or the role sees only its own rows.
export const nothing = (all, own) => may('monitor') ? all
	: `${own} The privilege "monitor" also shows those of other roles.`;
