-- Passcodes whose code is still kept, by age: it is deleted within 7 days (PASS-5).
CREATE INDEX accepted_secrets ON accepted (accepted_at) WHERE kind = 'passcode' AND content <> '';
