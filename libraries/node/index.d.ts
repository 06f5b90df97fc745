// Types of jobq for Node.
import { ClientConfig, QueryConfig } from 'pg';

/** Any JSON, also with numbers that JSON.parse() would round. */
export type Json = null | boolean | number | bigint | string | Decimal | Json[] | { [key: string]: Json | undefined };

/** A number of seconds, or an interval such as '5 min'. */
export type Interval = number | string;

/** An id; a BigInt beyond 2^53. */
export type Id = number | bigint;

/** A client or a pool of pg. */
export interface Queryable {
	query(config: QueryConfig): Promise<{ rows: any[] }>;
}

/** A decimal without an exact number in JavaScript. */
export class Decimal {
	constructor(text: string);
	readonly text: string;
	toString(): string;
}

/** The options of jobq.enqueue(). */
export interface Options {
	queue?: string | null;
	priority?: number | null;
	run_at?: Date | string | null;
	delay?: Interval | null;
	max_attempts?: number | null;
	retry_until?: Date | string | null;
	backoff?: string | null;
	timeout?: Interval | null;
	expires_at?: Date | string | null;
	unique_key?: string | null;
	uniqueness?: Uniqueness | null;
	group_key?: string | null;
	headers?: Json;
	tags?: string[] | null;
	options?: { context?: Json; uuid?: string; watch?: boolean } | null;
}

/** The details of a unique key. */
export interface Uniqueness {
	by?: string[];
	for?: Interval;
	until?: 'finish' | 'start';
	scope?: 'kind' | 'queue' | 'database';
	max?: number;
	on_conflict?: 'skip' | 'ignore' | 'replace' | 'merge' | 'reset' | 'error';
	merge?: string;
}

/** The columns of jobq.status(). */
export interface Status {
	id: Id;
	state: string;
	kind: string;
	queue: string | null;
	attempt: number | null;
	max_attempts: number | null;
	progress: number | null;
	message: string | null;
	result: Json;
	error: string | null;
	enqueued_at: Date | null;
	run_at: Date | null;
	started_at: Date | null;
	finished_at: Date | null;
}

/** Enqueue a job in the client's transaction; null with on_conflict ignore, if the key is held. */
export function enqueue(db: Queryable | FakeQueue, kind: string, payload?: unknown, options?: Options): Promise<Id | null>;

/** Enqueue a job for each payload, all with these options. */
export function enqueueMany(db: Queryable | FakeQueue, kind: string, payloads: Iterable<unknown>,
	options?: Options): Promise<(Id | null)[]>;

/** The status of a job, by its id or uuid. */
export function status(db: Queryable | FakeQueue, id: Id | string): Promise<Status>;

/** Wait until a job has finished, or for so many seconds. */
export function wait(db: Queryable | FakeQueue, id: Id, timeout?: Interval): Promise<Status>;

/** A reserved job. */
export interface Job<Payload = any> {
	readonly id: Id;
	readonly token: Id;
	readonly queue: string | null;
	readonly kind: string;
	readonly payload: Payload;
	readonly headers: any;
	readonly attempt: number;
	readonly maxAttempts: number | null;
	readonly tenant: string | null;
	readonly context: any;
	/** Aborted when the lease is lost. */
	readonly signal: AbortSignal;
	readonly lost: boolean;
	ack(db: Queryable | FakeQueue, result?: unknown): Promise<void>;
	progress(percent: number, message?: string | null): void;
	log(message: string, level?: 'debug' | 'info' | 'warning' | 'error'): void;
}

/** The returned value is the result of the job. */
export type Handler = (job: Job) => unknown;

export interface ConsumerOptions {
	parallel?: number;
	ahead?: number;
	lease?: number;
	heartbeat?: number;
	wait?: number;
	listen?: string | ClientConfig | null;
	pause?: number;
	stopTimeout?: number;
	name?: string;
	log?: (line: string) => void;
}

export class Consumer {
	constructor(config: string | ClientConfig, queues: string[], handler: Handler | { [kind: string]: Handler },
		options?: ConsumerOptions);
	/** Work until SIGTERM, SIGINT, or stop(). */
	run(): Promise<void>;
	/**
	 * Reserve no more jobs; run() returns when the running jobs have ended.  Jobs that still run after "timeout" seconds
	 * are given back.
	 */
	stop(timeout?: number): void;
}

/** A job of a FakeQueue. */
export interface FakeJob {
	readonly id: number;
	readonly state: string;
	readonly kind: string;
	readonly queue: string;
	readonly attempt: number;
	readonly max_attempts: number;
	readonly progress: number | null;
	readonly message: string | null;
	readonly result: any;
	readonly error: string | null;
	readonly payload: any;
	readonly options: Options;
	readonly log: [level: string, text: string][];
	readonly delay: number | null;
}

/** For unit tests of producers and handlers, without a database. */
export class FakeQueue {
	constructor(handler?: Handler | { [kind: string]: Handler });
	readonly jobs: FakeJob[];
	/** Run each waiting job once, also delayed jobs. */
	run(): Promise<void>;
}

/** The attempt has failed; the next attempt starts after "delay" seconds. */
export class Retry extends Error {
	constructor(delay: number, error?: string);
	readonly delay: number;
}

/** The job goes back to its queue for "delay" seconds, and no attempt is charged. */
export class Release extends Error {
	constructor(delay?: number);
	readonly delay: number;
}

/** Retries cannot help: the job becomes a dead letter. */
export class Reject extends Error {}
