-- What a campaign's messages had come to when a guard rail stopped it: only what is new may stop it again (CAMP-9).
ALTER TABLE campaigns ADD COLUMN guarded jsonb NOT NULL DEFAULT '{}';
