# usher as a Windows service: a gate with an inbox in a file. Run it as an administrator, with usher.exe in C:\Program Files\usher.
# Use absolute paths. The quotes inside the quotes belong to the path: without them Windows tries C:\Program.exe first.
New-Item -ItemType Directory C:\ProgramData\usher
icacls C:\ProgramData\usher /grant "NT AUTHORITY\LocalService:(OI)(CI)M"
New-Service -Name usher -StartupType Automatic -BinaryPathName '"C:\Program Files\usher\usher.exe"'
sc.exe config usher obj= "NT AUTHORITY\LocalService"
sc.exe failure usher reset= 3600 actions= restart/2000/restart/60000
sc.exe failureflag usher 1
New-ItemProperty HKLM:\SYSTEM\CurrentControlSet\Services\usher -Name Environment -PropertyType MultiString -Value @(
  'USHER_WEBHOOK_FORWARD_URL=http://127.0.0.1:3000/provisioning',
  'USHER_WEBHOOK_INBOX=file:C:\ProgramData\usher\inbox.db')
sc.exe start usher
