-- Run by a superuser: the extension, and a role for the application, which does
-- all the rest.

CREATE EXTENSION jobq;
CREATE ROLE shop LOGIN;
SELECT jobq.grant_privilege('shop', 'manage') \g /dev/null
CREATE SCHEMA demo AUTHORIZATION shop;
SET ROLE shop;

-- What the demo has seen, and whether it is as it should be.
CREATE TABLE demo.fact (
	no int GENERATED ALWAYS AS IDENTITY,
	what text NOT NULL,
	found text NOT NULL,
	ok boolean NOT NULL
);
