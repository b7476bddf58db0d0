#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the moto server at this port check signatures: strict_s3.py PORT

Prints, one a line, credentials that it takes: the ID and secret of a user's, then ID, secret and token of temporary ones.
"""
import json
import sys
import urllib.request

import boto3

server = f"http://127.0.0.1:{sys.argv[1]}"


def client(service):
    return boto3.client(service, endpoint_url=server, region_name="us-east-1", aws_access_key_id="any",
                        aws_secret_access_key="any")


iam = client("iam")
everything = json.dumps({"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]})
iam.create_user(UserName="someone")
iam.put_user_policy(UserName="someone", PolicyName="all", PolicyDocument=everything)
user = iam.create_access_key(UserName="someone")["AccessKey"]
role = iam.create_role(RoleName="role", AssumeRolePolicyDocument="{}")["Role"]
iam.put_role_policy(RoleName="role", PolicyName="all", PolicyDocument=everything)
temporary = client("sts").assume_role(RoleArn=role["Arn"], RoleSessionName="session")["Credentials"]
urllib.request.urlopen(urllib.request.Request(
    server + "/moto-api/reset-auth", data=b"0", method="POST", headers={"Content-Type": "text/plain"})).read()
print(user["AccessKeyId"], user["SecretAccessKey"], temporary["AccessKeyId"], temporary["SecretAccessKey"],
      temporary["SessionToken"], sep="\n")
