-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION jobq" to load this file. \quit

SET LOCAL search_path TO pg_catalog, pg_temp;

