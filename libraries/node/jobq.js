/*
 * jobq for Node: enqueues jobs, and calls a function for each job of a queue.
 *
 *	const { Consumer, enqueue } = require('./jobq');
 *	const id = await enqueue(client, 'thumbnails.make', { image: 7 }, { queue: 'thumbnails', delay: '5 min' });
 *	new Consumer({ database: 'app' }, ['thumbnails'], async job => ({ file: `${job.payload.image}.png` }),
 *		{ parallel: 4 }).run();
 *
 * Requires only Node 16 and pg.
 *
 * enqueue(), enqueueMany(), status() and wait() use the caller's client, and so its transaction.
 *
 * See the constructor of Consumer for the options.  The value
 * returned by the handler, or by its promise, is the result of the job.  An exception is a failed
 * attempt, apart from Retry, Release and Reject.
 *
 * Implementation: the first connection reserves jobs with jobq.reserve().  Another connection
 * reports outcomes, many in one statement, and extends leases while jobs run.  Lost connections are
 * restored while jobs continue.  With "listen", a third connection listens for notifications.  Idle
 * consumers then do not wait inside reserve(), and do not occupy connections of a pooler.  A
 * handler that blocks the event loop for longer than a lease loses the lease.
 *
 * Numbers in payloads and headers keep all digits.  An integer beyond 2^53 is a BigInt, also as
 * job.id.  A decimal without an exact number in JavaScript is a Decimal.  Handlers may return both.
 *
 * A job whose lease may have ended is not acknowledged.  job.signal, an AbortSignal, is aborted,
 * and the value returned by the handler is dropped.  The server would reject the outcome, too.
 */
'use strict';
const { Client, types } = require('pg');

const LEASE_LOST = 'JQ011';
const TOO_MANY = '53400';				// the role's share is used up; to extend the jobs of a single token at a time still works
const HOPELESS = /^(42|3F|22|JQ004)/;	// no such queue, no privilege, a queue of workers, ...: a repetition would fail again
const NOBODYS = /^($|08|40|53|57)/;		// for these no job is to blame
const LOST = /^($|08|57P)/;				// the connection is
const TOO_DEEP = '54001';				// to be read as JSON
const NO_ROOM = '54000';				// no room in the queue of NOTIFY at the commit, or for a text in a jsonb value
const NO_JSONB = 32000000;				// characters of a text; a shorter text always has room in jsonb
// temporary errors: lack of resources, a lock, a server that is read-only or stops, jobq not
// running yet
const PASSING = /^($|08|25|40|53|55|57|58|JQ002|54000)/;
const MOST_REFUSED = 20;				// refused ends of jobs up to which the consumer takes as many jobs as before
const SHORTEST_WAIT = 0.1;
const LATE = 1;							// seconds after which an answer shows that connections are scarce
const MOST_AT_A_TIME = 100;				// jobs in a statement
const JUDGE_PAUSE = 1;					// seconds for our own signal to arrive
const SOON = 0.1;						// seconds in which what is held ahead begins, unless "ahead" is told
const NOT_SOON = 1;						// seconds after which what has not begun is given back then

// defaults: notice an unresponsive or lost server
const NOTICING = { connectionTimeoutMillis: 10000, keepAlive: true, keepAliveInitialDelayMillis: 30000 };

const RESERVE = `SELECT id, token, queue, kind, payload, headers, attempt, max_attempts, tenant, context, alone AS apart,
extract(epoch FROM lease_until - jobq_internal.clock())::float8 AS left
FROM jobq.reserve($1::text[], $2::int, $3::interval, $4::interval, $5::text, $6::int)`;

// Each statement is for many jobs, with one commit.  An extension uses the role's quota per token,
// so the jobs of a token are grouped.
const OF_EACH = ' FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::interval[]) AS j (id, token, text, time)';
const TELL = {
	extend: `SELECT jobq.extend_many(array_agg(j.id ORDER BY j.token, j.id), array_agg(j.token ORDER BY j.token, j.id),
		min(j.time))` + OF_EACH,
	log: 'SELECT jobq.log(j.id, j.token, l ->> 1, l ->> 0)' + OF_EACH + ', jsonb_array_elements(j.text::jsonb) AS l',
	progress: 'SELECT jobq.set_progress(j.id, j.token, (j.text::jsonb ->> 0)::real, j.text::jsonb ->> 1)' + OF_EACH,
	ack: 'SELECT jobq.ack(j.id, j.token, j.text::jsonb)' + OF_EACH,
	nack: 'SELECT jobq.nack(j.id, j.token, j.text, j.time)' + OF_EACH,
	reject: 'SELECT jobq.reject(j.id, j.token, j.text)' + OF_EACH,
	release: 'SELECT jobq.release(j.id, j.token, j.time)' + OF_EACH,
};
const MEANWHILE = ['extend', 'log', 'progress'];	// reports about a running job

// Options are passed by name in one object, so the server checks them, and knows all.
const ENQUEUE = 'SELECT jobq.enqueue($1::text, $2::jsonb, options => $3::jsonb) AS id';
const ENQUEUE_MANY = `SELECT jobq.enqueue_many($1::text, ARRAY(SELECT jsonb_array_elements($2::jsonb)),
options => $3::jsonb) AS id`;
const STATUS = 'SELECT * FROM jobq.status($1::text)';
const WAIT = 'SELECT * FROM jobq.wait($1::bigint, $2::interval)';
const ACK = `WITH told AS MATERIALIZED (SELECT jobq.log($1::bigint, $2::bigint, l ->> 1, l ->> 0) FROM jsonb_array_elements($3::jsonb) AS l)
SELECT jobq.ack($1::bigint, $2::bigint, $4::jsonb) FROM (SELECT count(*) FROM told) AS lines`;

/**
 * The attempt has failed.  The next attempt starts after "delay" seconds instead of the backoff.
 */
class Retry extends Error {
	constructor(delay, error = 'the handler wants it to be tried again') {
		super(error);
		this.delay = delay;
	}
}

/** The job goes back to its queue for "delay" seconds, and no attempt is charged. */
class Release extends Error {
	constructor(delay = 0) {
		super(`released for ${delay} s`);
		this.delay = delay;
	}
}

/** Retries cannot help: the job becomes a dead letter. */
class Reject extends Error {}

const sleep = seconds => new Promise(done => setTimeout(done, seconds * 1000).unref());

// signals of terminals and service managers; a shell adds 128
const STOPS = { SIGHUP: 129, SIGINT: 130, SIGQUIT: 131, SIGTERM: 143 };

/** Was a command ended by such a signal? */
const wasStopped = error => error instanceof Error &&
	(error.signal in STOPS || Object.values(STOPS).includes(error.status ?? error.code));

const now = () => Number(process.hrtime.bigint()) / 1e9;

/**
 * A decimal without an exact number in JavaScript.  String(decimal) returns the digits; arithmetic
 * throws.
 */
class Decimal {
	constructor(text) { this.text = text; }
	toString() { return this.text; }
	valueOf() { throw new TypeError(`a number does not hold ${this.text}`); }
}

const integer = text => Number.isSafeInteger(Number(text)) ? Number(text) : BigInt(text);

/** The significant digits of a number, without leading and trailing zeros. */
const digits = text => text.replace(/e.*$/i, '').replace(/[-.]/g, '').replace(/^0+|0+$/g, '');

const fits = text => /^-?\d+$/.test(text) ? Number.isSafeInteger(Number(text)) : digits(String(Number(text))) === digits(text);

/**
 * Read JSON.  Texts in jsonb have no zero byte, so a zero byte can mark numbers that JSON.parse()
 * would round.
 */
function read(json) {
	if (!/[\d.]{16}/.test(json)) return JSON.parse(json);
	const token = /"|-?\d[\d.eE+-]*/g;
	let text = '', from = 0, found;
	while ((found = token.exec(json)) !== null) {
		if (found[0] === '"') {
			let end = found.index + 1;
			while (end < json.length && json[end] !== '"') end += json[end] === '\\' ? 2 : 1;
			token.lastIndex = end + 1;
		} else if (!fits(found[0])) {
			text += `${json.slice(from, found.index)}"\\u0000${found[0]}"`;
			from = token.lastIndex;
		}
	}
	return JSON.parse(text + json.slice(from), (key, value) => typeof value !== 'string' || value[0] !== '\0' ? value
		: /^.-?\d+$/s.test(value) ? BigInt(value.slice(1)) : new Decimal(value.slice(1)));
}

/** Write JSON, including the numbers made by read(). */
const write = value => JSON.stringify(value, (key, inner) => typeof inner === 'bigint' || inner instanceof Decimal ? `\0${inner}` : inner)
	?.replace(/"\\u0000(-?\d+(?:\.\d+)?)"/g, '$1');

const JSON_OID = 114, JSONB_OID = 3802;
const parsers = { getTypeParser: (oid, format) => oid === JSON_OID || oid === JSONB_OID ? read : types.getTypeParser(oid, format) };

// ------------------------------------------------------------ produce

/** An interval as text: a number is in seconds. */
const interval = value => typeof value === 'number' ? `${value.toFixed(6)} s` : value;

/**
 * The options of jobq.enqueue() as one JSON object; the keys of "options" stand beside the other
 * options.
 */
function optionsOf({ options, ...others }) {
	const all = { ...options, ...others };
	for (const key of ['delay', 'timeout']) all[key] = interval(all[key]);
	if (all.uniqueness) all.uniqueness = { ...all.uniqueness, for: interval(all.uniqueness.for) };
	return write(all);
}

const idOf = ({ id }) => id === null ? null : integer(id);

async function statusOf(db, text, values) {
	if (db instanceof FakeQueue) return db.status(values[0]);
	const { rows: [row] } = await db.query({ text, values, types: parsers });
	return { ...row, id: integer(row.id) };
}

/**
 * Enqueue a job; resolves to the id.  "db" is a client of pg, with its open transaction, or a pool.
 * The options are those of jobq.enqueue(): queue, priority, run_at, delay, max_attempts,
 * retry_until, backoff, timeout, expires_at, unique_key, uniqueness (an object), group_key,
 * headers, tags and options (an object).  A number of an interval is in seconds.
 *
 * Resolves to the holder's id if the unique key is held, or to null with on_conflict ignore.
 */
async function enqueue(db, kind, payload = {}, options = {}) {
	if (db instanceof FakeQueue) return db.enqueue(kind, [payload], options)[0];
	const { rows } = await db.query({ text: ENQUEUE, values: [kind, write(payload), optionsOf(options)] });
	return idOf(rows[0]);
}

/** Enqueue a job for each payload, all with these options, in one statement; resolves to the ids. */
async function enqueueMany(db, kind, payloads, options = {}) {
	if (db instanceof FakeQueue) return db.enqueue(kind, payloads, options);
	const { rows } = await db.query({ text: ENQUEUE_MANY, values: [kind, write([...payloads]), optionsOf(options)] });
	return rows.map(idOf);
}

/**
 * The status of a job, by its id or by the uuid given to enqueue(): an object with the columns of
 * jobq.status().
 */
const status = (db, id) => statusOf(db, STATUS, [String(id)]);

/**
 * Wait until a job has finished, or for so many seconds; resolves to the status.  The job must be
 * committed.
 */
const wait = (db, id, timeout = 30) => statusOf(db, WAIT, [String(id), interval(timeout)]);

// ------------------------------------------------------------ consume

/** The text of an exception, for any thrown value. */
function textOf(error) {
	try {
		return String(error);
	} catch {
		return 'an exception without a text';
	}
}

/** A text without characters rejected by the server. */
const clean = text => textOf(text).replace(/\0|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, '\ufffd');

/** An event to wait for. */
class Bell {
	constructor() { this.rung = false; }
	ring() {
		this.rung = true;
		if (this.wake) this.wake();
	}
	/** Wait for the event, or for so many seconds. */
	async wait(seconds = 3600) {
		let timer;
		if (!this.rung)
			await new Promise(done => {
				this.wake = done;
				timer = setTimeout(done, Math.max(0, Math.min(seconds, 3600)) * 1000);
			});
		clearTimeout(timer);
		this.wake = null;
		this.rung = false;
	}
}

/**
 * A connection that is restored after a loss, with pauses from a tenth of a second to ten seconds.
 */
class Link {
	constructor(config) {
		this.config = { ...NOTICING, ...(typeof config === 'string' ? { connectionString: config } : config) };
		Object.assign(this, { client: null, trying: null, connecting: null, closed: false, pause: 0.1, until: 0 });
	}

	async connect() {
		if (this.client) return this.client;
		if (!this.connecting) this.connecting = this.tryToConnect().finally(() => { this.connecting = null; });
		return this.connecting;
	}

	async tryToConnect() {
		if (now() < this.until)
			await new Promise(done => { this.timer = setTimeout(done, (this.until - now()) * 1000); });
		const client = this.trying = new Client(this.config);
		client.on('error', () => this.drop(client));
		client.on('end', () => this.drop(client));
		this.until = now() + this.pause;
		this.pause = Math.min(2 * this.pause, 10);
		await client.connect().finally(() => { this.trying = null; });
		this.pause = 0.1;
		if (this.closed) {
			this.drop(client);
			throw new Error('closed');
		}
		return this.client = client;
	}

	/** Run a statement; without an answer in time, the connection is closed. */
	async rows(patience, text, values) {
		let timer, client, over = false;
		const late = new Promise((_, fail) => {
			timer = setTimeout(() => {
				over = true;
				fail(new Error('no answer'));
			}, Math.max(0.1, patience) * 1000);
		});
		const run = (async () => {
			client = await this.connect();
			// an abandoned statement is repeated later, and must not run now
			return over ? null : client.query({ text, values, types: parsers });
		})();
		run.catch(() => {});
		try {
			return (await Promise.race([run, late])).rows;
		} catch (error) {
			if (client && NOBODYS.test(error.code || '')) this.drop(client);
			throw error;
		} finally {
			clearTimeout(timer);
		}
	}

	/** Close the connection, without letting the process wait for an unreachable server. */
	drop(client) {
		if (this.client === client) this.client = null;
		client.end().catch(() => {});
		setTimeout(() => client.connection.stream.destroy(), 1000).unref();
	}

	/** Close permanently, and ignore a connection attempt in progress. */
	close() {
		this.closed = true;
		clearTimeout(this.timer);
		if (this.trying) this.trying.connection.stream.destroy();
		if (this.client) this.drop(this.client);
	}
}

class Consumer {
	/**
	 * Reserves jobs of these queues, in strict order, and calls the handler for each.
	 *
	 * config             the database, for pg's Client
	 * handler            a function for all jobs, or an object with a function for each kind; a job of a kind that is
	 *                    not in the object is given back for "pause" seconds, and no attempt is charged: a consumer
	 *                    of a later version may have the function
	 * options.parallel   number of concurrent jobs
	 *        .ahead      number of jobs held that do not run yet; by default, as many as will begin within a tenth of a
	 *                    second; jobs that have not begun after a second are then released
	 *        .lease      seconds for which a job is held; extended while the job is held
	 *        .heartbeat  interval of extensions in seconds; default: a third of the lease
	 *        .wait       seconds that a call of reserve() waits for jobs, or the interval of checks with "listen";
	 *                    also the longest delay of a stop while idle
	 *        .listen     config of the server itself, not of a pooler; for notifications of jobs
	 *        .pause      seconds until a job of an unknown kind comes again: 10
	 *        .stopTimeout  seconds after SIGTERM or SIGINT until jobs that still run are given back; by default, the
	 *                    consumer waits for these jobs
	 *        .name       name in the view jobq.workers
	 *        .log        called with each line for the log; default: standard error
	 */
	constructor(config, queues, handler, options = {}) {
		const { parallel = 1, ahead = null, lease = 30, wait = 5, pause = 10 } = options;
		Object.assign(this, { queues, handler, heartbeat: lease / 3, listen: null, name: 'node', log: console.error },
			options, { parallel, ahead, lease, wait, pause, patience: Math.min(1, wait) });
		this.taker = new Link(config);
		this.teller = new Link(config);
		this.ear = new Link(this.listen);
		this.held = [];			// not begun
		this.running = new Set();
		this.ended = [];		// to be told
		this.turns = Object.keys(TELL).slice(1);	// kinds of outcomes; the kind reported last comes last
		this.jobTime = Infinity;	// seconds that a job takes, about
		this.trip = 0;			// seconds from a statement to the time at which its answer is looked at, about
		this.byToken = false;	// jobs of several tokens are too many to be extended together
		this.room = new Bell();	// there is room for jobs
		this.news = new Bell();	// there is something to tell
		this.wake = new Bell();	// there may be jobs
		this.stopping = this.taken = false;
		this.stopped = new Promise(done => { this.tellStopped = done; });
		this.giveUpAt = Infinity;
		this.failure = null;	// of reserve(), which would be no better again
	}

	/** Work until SIGTERM, SIGINT, or stop(). */
	async run() {
		const stop = () => this.stop(this.stopTimeout);
		process.on('SIGTERM', stop).on('SIGINT', stop);
		try {
			if (this.listen) this.hear();
			await Promise.all([this.take().finally(() => {
				this.taken = true;
				this.news.ring();
			}), this.tell()]);
		} finally {
			this.stop();
			for (const link of [this.taker, this.teller, this.ear]) link.close();
			process.off('SIGTERM', stop).off('SIGINT', stop);
		}
		if (this.failure) throw this.failure;
	}

	/**
	 * Reserve no more jobs; run() returns when the running jobs have ended.  Jobs that still run
	 * after "timeout" seconds are given back, and no attempt is charged; their signals are aborted.
	 */
	stop(timeout) {
		this.stopping = true;
		this.giveUpAt = Math.min(this.giveUpAt, now() + (timeout ?? Infinity));
		this.tellStopped();
		for (const bell of [this.room, this.news, this.wake]) bell.ring();
	}

	// ------------------------------------------------------------ take

	wanted() {
		// the next answer must arrive before the held jobs have ended
		const soon = Math.max(SOON, Math.min(2 * this.trip, NOT_SOON / 2));
		const ahead = this.ahead ??
			Math.min(MOST_AT_A_TIME, Math.floor(this.parallel * soon / Math.max(this.jobTime, 0.001)));
		// until outcomes are reported, because the next crash would lose these outcomes, too
		if ([...this.held, ...this.running, ...this.ended].some(job => job._.apart && !job.lost && !job._.refused)) return 0;
		const wanted = this.parallel - this.held.length - this.running.size;
		// while outcomes cannot be reported, no more jobs are reserved; some refused jobs are not
		// counted
		const untold = this.ended.length - Math.min(this.ended.filter(job => job._.refused).length, MOST_REFUSED);
		const room = 2 * (this.parallel + ahead) - this.held.length - this.running.size - untold;
		return Math.min(this.held.length <= ahead / 2 ? wanted + ahead : wanted, room, 1000);
	}

	async take() {
		while (!this.stopping) {
			if (this.wanted() <= 0) {
				await this.room.wait();
				continue;
			}
			const wait = this.listen ? 0 : this.patience;
			let asked, rows;
			try {
				if (!this.taker.client) await Promise.race([this.taker.connect(), this.stopped]);
				if (this.stopping) return;
				const wanted = this.wanted();	// may be 0 by now
				if (wanted <= 0) continue;
				asked = now();
				rows = await this.taker.rows(wait + this.lease, RESERVE,
					[this.queues, wanted, `${this.lease} s`, `${wait} s`, this.name, this.held.length + this.running.size]);
			} catch (error) {
				this.log(`could not reserve: ${error.message}`);
				if (HOPELESS.test(error.code || '')) {
					this.failure = error;
					this.stop();
					return;
				}
				// without a connection, rows() waits
				if (!this.stopping && !LOST.test(error.severity ? error.code : '')) await Promise.race([sleep(1), this.stopped]);
				continue;
			}
			const late = now() - asked - wait;
			this.adapt(late, rows.length === 0);
			for (const row of rows)
				// a delayed answer says nothing about the rest of the lease
				this.held.push(this.job(row, late > LATE ? 0 : this.heartbeat));
			this.begin();
			this.news.ring();
			if (rows.length === 0 && this.listen && !this.stopping) await this.wake.wait(this.wait);
		}
	}

	job(row, heartbeat) {
		const controller = new AbortController();
		// 64-bit numbers arrive as texts
		const { max_attempts: maxAttempts, apart, left, ...columns } = row;
		const job = {
			...columns, id: integer(row.id), token: integer(row.token), maxAttempts, signal: controller.signal, lost: false,
			// "since": start of the hold, or later of the handler; "refused": the server rejects
			// the outcome, probably permanently.  A job with a timeout may have less time than
			// other jobs.
			_: { controller, since: now(), until: now() + left, extendAt: now() + Math.min(heartbeat, left / 3), outcome: null,
				alone: false, refused: false, tellAt: 0, apart, lines: [], told: false, progress: null, settled: false, result: null },
			/**
			 * Acknowledge the job in the open transaction of this client: the job is completed if,
			 * and when, the transaction commits.  The handler then commits and returns; the value
			 * is ignored.  If the transaction rolls back, the handler must throw, and the attempt
			 * has failed.
			 */
			ack: async (db, result = null) => {
				const text = result === null ? null : write(result);
				// not known yet whether lines in a running statement are stored
				while (job._.told && !job.lost) await new Promise(done => setTimeout(done, 10));
				job.signal.throwIfAborted();
				const lines = JSON.stringify(job._.lines);
				// from here on, the transaction decides: the consumer extends no lease and sends no lines
				Object.assign(job._, { until: Infinity, extendAt: Infinity, settled: true, result: text });
				if (db instanceof FakeQueue) return;
				Object.assign(job._, { lines: [], progress: null });
				await db.query({ text: ACK, values: [String(job.id), String(job.token), lines, text] });
			},
			/**
			 * Reports the progress from 0 to 100.  Of several calls in a short time, the last is
			 * reported.
			 */
			progress: (percent, message = null) => {
				if (job.lost || job._.settled) return;
				job._.progress = JSON.stringify([Number(percent), message]);
				this.news.ring();
			},
			/** Stores a log line with the job; level is debug, info, warning or error. */
			log: (message, level = 'info') => {
				if (job.lost || job._.settled) return;
				job._.lines.push([level, clean(message)]);
				this.news.ring();
			},
		};
		return job;
	}

	/** Late answers reduce the waiting time.  Behind a pooler, consumers waiting in reserve() may
	 * occupy all connections, so that jobs cannot be settled. */
	adapt(late, empty = false) {
		if (late > LATE) this.patience = Math.max(SHORTEST_WAIT, this.patience / late);
		else if (empty && late < LATE / 2) this.patience = Math.min(this.wait, this.patience * 2);
	}

	async hear() {
		while (!this.stopping) {
			try {
				const client = await this.ear.connect();
				const ended = new Promise(done => client.once('end', done));
				client.on('notification', () => this.wake.ring());
				for (const queue of this.queues) await client.query(`LISTEN ${client.escapeIdentifier('jobq_queue_' + queue)}`);
				this.wake.ring();
				await ended;
			} catch (error) {
				if (this.stopping) return;
				this.log(`does not hear of jobs: ${error.message}`);
				if (this.ear.client) this.ear.drop(this.ear.client);
				// without a connection, connect() waits
				if (!LOST.test(error.severity ? error.code : '')) await Promise.race([sleep(1), this.stopped]);
			}
		}
	}

	// ------------------------------------------------------------ run

	begin() {
		while (this.held.length > 0 && this.running.size < this.parallel && !this.stopping) {
			const [job] = this.held;
			// a job that may have crashed a consumer runs only with jobs of the same token
			if ([...this.running].some(other => !other.lost && other.token !== job.token && (other._.apart || job._.apart))) break;
			this.held.shift();
			this.running.add(job);
			job._.since = now();
			this.outcomeOf(job).then(outcome => {
				const took = now() - job._.since;
				this.running.delete(job);
				this.jobTime = this.jobTime === Infinity ? took : this.jobTime + (took - this.jobTime) / 10;
				if (!job.lost) {
					job._.outcome = outcome;
					if (outcome[0] !== 'settled') this.ended.push(job);
				}
				this.begin();
				this.room.ring();
				this.news.ring();
			});
		}
	}

	/** The function for the job's kind, if there is one. */
	handlerOf({ kind }) {
		if (typeof this.handler === 'function') return this.handler;
		return Object.prototype.hasOwnProperty.call(this.handler, kind) ? this.handler[kind] : undefined;
	}

	/** Call the handler; returns the outcome to report. */
	async outcomeOf(job) {
		const handler = this.handlerOf(job);
		if (!handler) {
			this.log(`job ${job.id}: there is no handler for kind "${job.kind}"; given back for ${this.pause} s`);
			return ['release', null, this.pause];
		}
		try {
			const result = await handler(job);
			if (job._.settled) return ['settled', job._.result, null];
			return ['ack', result === undefined || result === null ? null : write(result), null];
		} catch (error) {
			if (error instanceof Retry) return ['nack', clean(error.message), error.delay];
			if (error instanceof Release) return ['release', null, error.delay];
			if (error instanceof Reject) return ['reject', clean(error.message), null];
			// a terminal, or a service manager, signals this program, too; the command may end first
			if (wasStopped(error) && !this.stopping) await Promise.race([sleep(JUDGE_PAUSE), this.stopped]);
			if (wasStopped(error) && this.stopping) return ['release', null, 0];
			return ['nack', clean(error), null];
		}
	}

	/** The lease may have ended: the outcome of the job is not reported any more. */
	lose(job) {
		if (job.lost && !this.ended.includes(job)) return;
		job.lost = true;
		this.log(`job ${job.id} (${job.kind}): its lease is over${job._.outcome ? '; it may be done again' : ''}`);
		Object.assign(job._, { lines: [], progress: null });
		for (const list of ['held', 'ended']) this[list] = this[list].filter(other => other !== job);
		job._.controller.abort(new Error('the lease is over'));
		this.room.ring();
	}

	// ------------------------------------------------------------ tell

	/** Extend leases and report outcomes, until everything is reported. */
	async tell() {
		for (;;) {
			this.giveBack();
			for (const job of [...this.held, ...this.running, ...this.ended])
				if (now() >= job._.until) this.lose(job);
			if (now() >= this.giveUpAt) this.giveUp();
			this.begin();	// lost jobs do not prevent other jobs from beginning
			// Extend leases also after the end of a job, until the outcome is reported.  Not for
			// refused jobs, which would be held forever, and not during shutdown.
			const holding = [...this.held, ...this.running, ...this.stopping ? [] : this.ended]
				.filter(job => !job.lost && !job._.refused);
			const [what, jobs] = this.next(holding);
			if (what) {
				await this.tellOne(what, jobs, Math.min(this.lease / 2, ...holding.map(job => job._.until - now())));
			} else if (this.taken && this.held.length + this.running.size + this.ended.length === 0) {
				return;
			} else {
				await this.news.wait(Math.min(60, ...this.ended.map(job => Math.min(job._.tellAt, job._.until) - now()),
					...[...this.running].filter(job => job._.lines.length > 0 || job._.progress).map(job => job._.tellAt - now()),
					...holding.map(job => Math.min(job._.extendAt, job._.until) - now()),
					...this.held.map(job => this.lateAt(job) - now()),
					...this.running.size > 0 ? [this.giveUpAt - now()] : []));
			}
		}
	}

	/** Release held jobs during shutdown, or if they have not begun as soon as expected.  Their
	 * timeouts are running, and another consumer may be idle. */
	giveBack() {
		const back = this.held.filter(job => this.stopping || now() >= this.lateAt(job));
		if (back.length === 0) return;
		this.jobTime = Infinity;	// nothing is taken ahead until one has ended
		for (const job of back) job._.outcome = ['release', null, 0];
		this.held = this.held.filter(job => !back.includes(job));
		this.ended.push(...back);
	}

	/** Give back jobs that run too long after a stop.  Their outcomes are not reported any more. */
	giveUp() {
		for (const job of this.running) {
			if (job._.settled) job.lost = true;		// the handler's transaction decides
			if (job.lost) continue;
			this.log(`job ${job.id} (${job.kind}): given back, because the consumer stops`);
			job.lost = true;
			Object.assign(job._, { lines: [], progress: null, outcome: ['release', null, 0] });
			this.ended.push(job);
			job._.controller.abort(new Error('the consumer stops'));
		}
		this.running.clear();
	}

	lateAt(job) {
		return this.ahead === null && !job._.apart ? job._.since + Math.min(NOT_SOON, this.heartbeat) : Infinity;
	}

	/** The most urgent report: extensions, then outcomes.  Outcomes take turns: an endless stream
	 * of one kind must not delay the rest until the leases end. */
	next(holding) {
		for (const what of ['extend', ...this.turns]) {
			let jobs;
			if (what === 'extend') jobs = holding.filter(job => now() >= job._.extendAt);
			else if (MEANWHILE.includes(what))
				jobs = [...this.running, ...this.ended].filter(job => now() >= job._.tellAt &&
					(what === 'log' ? job._.lines.length > 0 : job._.progress));
			else	// what is to be in the log is told before
				jobs = this.ended.filter(job => job._.outcome[0] === what && now() >= job._.tellAt && job._.lines.length === 0);
			if (what === 'extend' && this.byToken) jobs = jobs.filter(job => job.token === jobs[0].token);
			const alone = jobs.filter(job => job._.alone);
			if (jobs.length === 0) continue;
			if (what !== 'extend') this.turns = [...this.turns.filter(other => other !== what), what];
			return [what, alone.length > 0 ? alone.slice(0, 1) : jobs.slice(0, MOST_AT_A_TIME)];
		}
		return [null, []];
	}

	async tellOne(what, jobs, patience) {
		const asked = now(), extend = what === 'extend', meanwhile = MEANWHILE.includes(what);
		const time = job => extend ? this.lease : meanwhile ? null : job._.outcome[2];
		const text = job => what === 'log' ? JSON.stringify(job._.telling) : meanwhile ? job._.telling : job._.outcome[1];
		for (const job of jobs) {
			job._.telling = { log: [...job._.lines], progress: job._.progress, extend: null }[what];
			job._.told = what === 'log';
		}
		try {
			await this.teller.rows(patience, TELL[what], [jobs.map(job => job.id), jobs.map(job => job.token),
				jobs.map(text), jobs.map(job => interval(time(job)))]);
		} catch (error) {
			this.notTold(what, jobs, error);
			return;
		} finally {
			for (const job of jobs) job._.told = false;
		}
		const took = now() - asked;
		this.adapt(took);
		this.trip += (took - this.trip) / 10;
		for (const job of jobs) {
			if (meanwhile) this.said(what, job);
			if (!job._.outcome) job._.alone = false;
			if (extend && !job._.settled) Object.assign(job._, { until: asked + this.lease, extendAt: asked + this.heartbeat });
		}
		if (meanwhile) return;
		this.ended = this.ended.filter(job => !jobs.includes(job));
		this.room.ring();
	}

	/** Remove the reported part; the handler may have added more. */
	said(what, job) {
		if (job._.settled) return;
		if (what === 'log') job._.lines.splice(0, job._.telling.length);
		else if (job._.progress === job._.telling) job._.progress = null;
	}

	/** Repeat the report later, unless the error is permanent.  If the connection was lost, the
	 * server may have processed the report.  A later error "the lease is over" is then
	 * ambiguous. */
	notTold(what, jobs, error) {
		const state = error.severity ? error.code : '';
		const again = now() + (LOST.test(state) ? 0.1 : 1);	// a connection is waited for when it is made
		if (what === 'extend' && state === TOO_MANY && !this.byToken) {
			this.byToken = true;
			return;
		}
		for (const job of jobs) {
			if (jobs.length > 1 && !NOBODYS.test(state)) {
				job._.alone = true;		// one of the jobs is to blame
			} else if (job._.settled && (what === 'extend' || MEANWHILE.includes(what))) {
				continue;
			} else if (state === LEASE_LOST) {
				this.lose(job);
			} else {
				this.log(`could not ${what} job ${job.id}: ${error.message}`);
				if (what === 'extend') job._.extendAt = again;
				else if (MEANWHILE.includes(what)) {
					if (PASSING.test(state)) job._.tellAt = again;
					else this.said(what, job);
				}
				else if (what === 'ack' && (/^22/.test(state) || state === TOO_DEEP ||
					(state === NO_ROOM && (job._.outcome[1] || '').length > NO_JSONB)))
					job._.outcome = ['nack', clean(`the result cannot be kept: ${error.message}`), null];
				else if (/^22/.test(state))
					job._.outcome = ['nack', clean(`what the handler says cannot be told: ${error.message}`), null];
				else {
					job._.tellAt = again;
					job._.refused = !PASSING.test(state);
					this.room.ring();
				}
			}
		}
	}
}

// ------------------------------------------------------------ unit tests

/**
 * For unit tests of producers and handlers, without a database.
 *
 *	const queue = new FakeQueue({ 'thumbnails.make': make });
 *	await enqueue(queue, 'thumbnails.make', { image: 7 });
 *	await queue.run();
 *	assert.deepEqual(queue.jobs[0].result, { file: '7.png' });
 *
 * enqueue(), enqueueMany(), status() and wait() take the queue instead of a client.  "jobs" has all
 * jobs: the columns of jobq.status() without times, and payload, options, log (an array of level
 * and text), and the "delay" set by the handler.  The handler is a function or an object, as for a
 * Consumer.  Transactions, unique keys, limits and times are not imitated, and the server's checks
 * are not made.
 */
class FakeQueue {
	constructor(handler = {}) {
		this.handler = handler;
		this.jobs = [];
	}

	/** Run each waiting job once, also delayed jobs.  Jobs enqueued by handlers wait for the next call. */
	async run() {
		const consumer = new Consumer({}, [], this.handler, { log: () => {} });
		for (const job of this.jobs.filter(({ state }) => state === 'ready' || state === 'scheduled')) {
			const { id, queue, kind, payload, options, attempt, max_attempts: most } = job;
			const given = consumer.job({ id, token: id, queue, kind, payload, headers: options.headers ?? null, attempt: attempt + 1,
				max_attempts: most, tenant: null, context: null, apart: false, left: 60 }, 60);
			const [what, text, delay] = await consumer.outcomeOf(given);
			job.log.push(...given._.lines);
			if (given._.progress) [job.progress, job.message] = JSON.parse(given._.progress);
			job.delay = delay;
			if (what !== 'release') job.attempt++;
			if (what === 'release') job.state = delay ? 'scheduled' : 'ready';
			else if (what === 'ack' || what === 'settled') Object.assign(job, { state: 'completed', error: null, result: text === null ? null : read(text) });
			else Object.assign(job, { error: text, state: what === 'reject' || (most > 0 && job.attempt >= most) ? 'dead' : 'scheduled' });
		}
	}

	/** @internal */
	enqueue(kind, payloads, options) {
		optionsOf(options);		// throws if an option is no JSON
		return [...payloads].map(payload => this.jobs.push({
			id: this.jobs.length + 1, state: options.run_at || options.delay ? 'scheduled' : 'ready', kind,
			queue: options.queue ?? 'default', attempt: 0, max_attempts: options.max_attempts ?? 3, progress: null, message: null,
			result: null, error: null, payload: read(write(payload)), options, log: [], delay: null,
		}));
	}

	/** @internal */
	status(id) {
		const wanted = String(id).toLowerCase();
		const found = this.jobs.find(job => wanted === String(job.id) ||
			wanted === { ...job.options.options, ...job.options }.uuid?.toLowerCase());
		if (!found) throw new Error(`job ${id} does not exist`);
		return found;
	}
}

module.exports = { Consumer, Decimal, FakeQueue, Reject, Release, Retry, enqueue, enqueueMany, status, wait };
